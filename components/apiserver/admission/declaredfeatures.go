package admission

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// declaredFeatures refuses changes of a pod that its node does not say it can
// make: nodes may be older than the API server.
//
// https://kep.k8s.io/5328
type declaredFeatures struct {
	operations
	nodes corelisters.NodeLister
	kube  kubernetes.Interface
}

func newDeclaredFeatures(cfg *Config) (admission.Interface, error) {
	return &declaredFeatures{onUpdate, cfg.Informers.Core().V1().Nodes().Lister(), cfg.Kube}, nil
}

// Validate implements admission.ValidationInterface.
func (p *declaredFeatures) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	if r.Group != "" || r.Resource != "pods" || a.GetSubresource() != "" && a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, was := a.GetOldObject().(*corev1.Pod)
	if !ok || !was || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	needed := featuresOfUpdate(&old.Spec, &pod.Spec)
	if len(needed) == 0 {
		return nil
	}
	node, err := p.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		node, err = p.kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	missing := slices.DeleteFunc(needed, func(feature string) bool { return slices.Contains(node.Status.DeclaredFeatures, feature) })
	if len(missing) > 0 {
		return forbid(a, "pod update requires features %s which are not available on node %q", strings.Join(missing, ", "), node.Name)
	}
	return nil
}

// featuresOfUpdate are those, by name and in order, that a node needs to make a
// running pod another.
func featuresOfUpdate(old, now *corev1.PodSpec) []string {
	var needed []string
	if !apiequality.Semantic.DeepEqual(old.Resources, now.Resources) {
		needed = append(needed, "InPlacePodLevelResourcesVerticalScaling")
	}
	for i := range min(len(old.InitContainers), len(now.InitContainers)) {
		c := &old.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if !sidecar && !apiequality.Semantic.DeepEqual(c.Resources, now.InitContainers[i].Resources) {
			return append(needed, "InPlacePodVerticalScalingInitContainers")
		}
	}
	return needed
}
