package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// byNode is of plugins that judge changes of a pod by the node that it is on.
type byNode struct {
	operations
	nodes corelisters.NodeLister
	kube  kubernetes.Interface
}

func newByNode(cfg *Config) byNode {
	return byNode{onUpdate, cfg.Informers.Core().V1().Nodes().Lister(), cfg.Kube}
}

// changedOnNode returns a pod on a node whose spec is changed by way of one of the
// subresources ("" for the pod itself), and the pod as it was; nil for all else.
func changedOnNode(a admission.Attributes, subresources ...string) (pod, old *corev1.Pod) {
	r := a.GetResource()
	if r.Group != "" || r.Resource != "pods" || !slices.Contains(subresources, a.GetSubresource()) {
		return nil, nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, was := a.GetOldObject().(*corev1.Pod)
	if !ok || !was || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil, nil
	}
	return pod, old
}

// nodeOf returns the node that a pod is on, which may be newer than the cache; it is
// not to be changed. Without one the request is refused.
func (p byNode) nodeOf(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := p.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		node, err = p.kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, forbid(a, "node %q not found", pod.Spec.NodeName)
	case err != nil:
		return nil, forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	return node, nil
}
