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

// byNode is embedded by plugins that check changes of a pod against the capabilities of the node on
// which the pod runs.
type byNode struct {
	operations
	nodes corelisters.NodeLister
	kube  kubernetes.Interface
}

// newByNode returns a byNode that finds nodes with the informers and the client of cfg.
func newByNode(cfg *Config) byNode {
	return byNode{onUpdate, cfg.Informers.Core().V1().Nodes().Lister(), cfg.Kube}
}

// changedOnNode returns the new and the old version of a pod if the request changes the spec of a pod that is
// assigned to a node, through one of the subresources ("" is the pod itself). A changed generation shows that the
// spec changes. Otherwise it returns nil.
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

// nodeOf returns the node of the pod from the informer, or from the API if the informer does not have it. The node
// must not be modified. If it does not exist or cannot be read, it returns a Forbidden error, which rejects the
// request.
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
