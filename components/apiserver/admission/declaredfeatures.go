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

// declaredFeatures rejects pod changes that need features that the pod's node does not declare.
// Nodes may be older than the API server.
//
// https://kep.k8s.io/5328
type declaredFeatures struct{ byNode }

func newDeclaredFeatures(cfg *Config) (admission.Interface, error) {
	return declaredFeatures{newByNode(cfg)}, nil
}

// Validate implements admission.ValidationInterface.
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

// featuresOfUpdate returns the sorted names of the features that a node needs to change a running
// pod from old to now.
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
