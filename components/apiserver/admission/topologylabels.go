package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// podTopologyLabels is the plugin PodTopologyLabels. It copies the zone and region labels of a node
// to the pods that are assigned to it, either on creation or through the binding subresource.
//
// https://kep.k8s.io/4742
type podTopologyLabels struct {
	operations
	nodes corelisters.NodeLister
	kube  kubernetes.Interface
}

// newPodTopologyLabels creates the plugin PodTopologyLabels. It never fails.
func newPodTopologyLabels(cfg *Config) (admission.Interface, error) {
	return &podTopologyLabels{operations: onCreate, nodes: cfg.Informers.Core().V1().Nodes().Lister(), kube: cfg.Kube}, nil
}

// Admit copies the zone and region labels of the node to a new pod that is already assigned to a node, or to a
// Binding, which passes them to the pod.
func (p *podTopologyLabels) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	if r.Group != "" || r.Resource != "pods" {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *corev1.Pod:
		if a.GetSubresource() == "" && obj.Spec.NodeName != "" {
			p.copy(ctx, &obj.ObjectMeta, obj.Spec.NodeName)
		}
	case *corev1.Binding:
		if a.GetSubresource() == "binding" && obj.Target.Kind == "Node" {
			p.copy(ctx, &obj.ObjectMeta, obj.Target.Name)
		}
	}
	return nil
}

// copy sets the zone and region labels of the node with the name in to. It does nothing if the node cannot be read: a
// pod can be assigned to a node that has not registered yet.
func (p *podTopologyLabels) copy(ctx context.Context, to *metav1.ObjectMeta, name string) {
	node, err := p.nodes.Get(name)
	if err != nil {
		if node, err = p.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return
		}
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		v, ok := node.Labels[key]
		if !ok {
			continue
		}
		if to.Labels == nil {
			to.Labels = map[string]string{}
		}
		to.Labels[key] = v
	}
}
