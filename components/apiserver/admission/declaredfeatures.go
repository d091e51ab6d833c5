package admission

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/internal/pod/podutil"
)

// declaredFeatures is the plugin NodeDeclaredFeatureValidator. It rejects pod changes for which the
// pod's node needs a feature that it does not declare, because nodes may be older than the API
// server.
//
// https://kep.k8s.io/5328
type declaredFeatures struct{ byNode }

// newDeclaredFeatures creates the plugin declaredFeatures. It never fails.
func newDeclaredFeatures(cfg *Config) (admission.Interface, error) {
	return declaredFeatures{newByNode(cfg)}, nil
}

// Validate rejects a change or resize of a pod that is assigned to a node if the node does not declare a feature that
// the change needs, or if the node does not exist.
func (p declaredFeatures) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, old := changedOnNode(a, "", "resize")
	if pod == nil {
		return nil
	}
	needed := featuresOfUpdate(&old.Spec, &pod.Spec)
	if len(needed) == 0 {
		return nil
	}
	node, err := p.nodeOf(ctx, a, pod)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(needed, func(feature string) bool { return slices.Contains(node.Status.DeclaredFeatures, feature) })
	if len(missing) > 0 {
		return forbid(a, "pod update requires features %s which are not available on node %q", strings.Join(missing, ", "), node.Name)
	}
	return nil
}

// featuresOfUpdate returns the names of the node features that are needed to change a running pod from the spec old
// to now, sorted. They are for changed resources of the pod as a whole and of init containers other than sidecars.
func featuresOfUpdate(old, now *corev1.PodSpec) []string {
	var needed []string
	if !apiequality.Semantic.DeepEqual(old.Resources, now.Resources) {
		needed = append(needed, "InPlacePodLevelResourcesVerticalScaling")
	}
	for i := range min(len(old.InitContainers), len(now.InitContainers)) {
		c := &old.InitContainers[i]
		if !podutil.Sidecar(c) && !apiequality.Semantic.DeepEqual(c.Resources, now.InitContainers[i].Resources) {
			return append(needed, "InPlacePodVerticalScalingInitContainers")
		}
	}
	return needed
}
