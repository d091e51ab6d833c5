package plugins

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodeDeclaredFeatures keeps pods to nodes that declare what the pods need of the
// kubelet and that not every kubelet of a cluster may have.
// https://kep.k8s.io/5328
type NodeDeclaredFeatures struct{}

// Name of the plugin.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// Wakes as framework.Waker.
func (NodeDeclaredFeatures) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeFeaturesChanged
}

// Filter as framework.Filter.
func (NodeDeclaredFeatures) Filter(c *framework.Cycle) (*framework.Check, error) {
	all := features.DefaultFramework
	set, err := all.InferForPodScheduling(&features.PodInfo{Spec: &c.Pod.Object.Spec}, version.MajorMinor(1, 37))
	if err != nil {
		return nil, fmt.Errorf("what a pod needs of its node: %w", err)
	}
	if set.IsEmpty() {
		return nil, nil
	}
	needed, err := all.Unmap(set)
	if err != nil {
		return nil, fmt.Errorf("what a pod needs of its node: %w", err)
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		for _, name := range needed {
			if !slices.Contains(n.Object.Status.DeclaredFeatures, name) {
				return reason("node(s) didn't match Pod's required features", true)
			}
		}
		return nil
	}}, nil
}
