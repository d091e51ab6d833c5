package plugins

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodeDeclaredFeatures restricts pods to nodes that declare the kubelet features that the pods
// require.
// https://kep.k8s.io/5328
type NodeDeclaredFeatures struct{}

// Name returns the name of the plugin in configuration files.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeDeclaredFeatures) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeFeaturesChanged
}

// Filter rejects nodes that do not declare a feature that the pod's spec requires. It rejects no node and returns nil
// if the pod requires none.
func (NodeDeclaredFeatures) Filter(c *framework.Cycle) (*framework.Check, error) {
	all := features.DefaultFramework
	set, err := all.InferForPodScheduling(&features.PodInfo{Spec: &c.Pod.Object.Spec}, version.MajorMinor(1, 37))
	if err != nil {
		return nil, fmt.Errorf("inferring required node features of pod: %w", err)
	}
	if set.IsEmpty() {
		return nil, nil
	}
	needed, err := all.Unmap(set)
	if err != nil {
		return nil, fmt.Errorf("inferring required node features of pod: %w", err)
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
