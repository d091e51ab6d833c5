package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/yaml"
)

// nodeSelectorAnnotation of a namespace restricts its pods to nodes.
const nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"

// podNodeSelector adds the node selector of the namespace to its pods.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#podnodeselector
type podNodeSelector struct {
	operations
	namespaces namespaces
	// clusterWide applies to namespaces without the annotation. allowed are the only labels that
	// pods of a namespace may select, if not empty.
	clusterWide labels.Set
	allowed     map[string]labels.Set
}

func newPodNodeSelector(cfg *Config) (admission.Interface, error) {
	var file struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := yaml.Unmarshal(cfg.Files["PodNodeSelector"], &file); err != nil {
		return nil, err
	}
	p := &podNodeSelector{operations: onCreate, namespaces: newNamespaces(cfg), allowed: map[string]labels.Set{}}
	for name, text := range file.Selectors {
		set, err := labels.ConvertSelectorToLabelsMap(text)
		if err != nil {
			return nil, fmt.Errorf("node selector of %s: %w", name, err)
		}
		if name == "clusterDefaultNodeSelector" {
			p.clusterWide = set
		}
		p.allowed[name] = set
	}
	return p, nil
}

// Admit implements admission.MutationInterface.
func (p *podNodeSelector) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isRequestFor(a, "", "pods") {
		return nil
	}
	want, err := p.namespaceSelector(ctx, a.GetNamespace())
	if err != nil {
		return err
	}
	if len(want) > 0 && !labels.Conflicts(want, pod.Spec.NodeSelector) {
		pod.Spec.NodeSelector = labels.Merge(want, pod.Spec.NodeSelector)
	}
	return p.check(a, pod, want)
}

// Validate implements admission.ValidationInterface.
func (p *podNodeSelector) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isRequestFor(a, "", "pods") {
		return nil
	}
	want, err := p.namespaceSelector(ctx, a.GetNamespace())
	if err != nil {
		return err
	}
	return p.check(a, pod, want)
}

// check rejects a pod whose node selector conflicts with the selector of its namespace, or uses
// labels that are not allowed in the namespace.
func (p *podNodeSelector) check(a admission.Attributes, pod *corev1.Pod, want labels.Set) error {
	if labels.Conflicts(want, pod.Spec.NodeSelector) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name, fmt.Errorf("pod node label selector conflicts with its namespace node label selector"))
	}
	if allowed := p.allowed[a.GetNamespace()]; len(allowed) > 0 {
		for k, v := range pod.Spec.NodeSelector {
			if w, ok := allowed[k]; !ok || w != v {
				return apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name, fmt.Errorf("pod node label selector labels conflict with its namespace whitelist"))
			}
		}
	}
	return nil
}

// namespaceSelector returns the node selector of a namespace.
func (p *podNodeSelector) namespaceSelector(ctx context.Context, name string) (labels.Set, error) {
	ns, err := p.namespaces.get(ctx, name)
	if err != nil {
		return nil, err
	}
	if text, ok := ns.Annotations[nodeSelectorAnnotation]; ok {
		return labels.ConvertSelectorToLabelsMap(text)
	}
	return p.clusterWide, nil
}

// namespaces reads namespaces from the informer, and from the API if the informer does not have
// them.
type namespaces struct {
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface
}

func newNamespaces(cfg *Config) namespaces {
	return namespaces{cfg.Informers.Core().V1().Namespaces().Lister(), cfg.Kube}
}

func (n namespaces) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	if ns, err := n.lister.Get(name); err == nil {
		return ns, nil
	}
	ns, err := n.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, apierrors.NewInternalError(err)
	}
	return ns, err
}
