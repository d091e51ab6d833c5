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

// podNodeSelector gives pods the node selector of their namespace.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#podnodeselector
type podNodeSelector struct {
	operations
	namespaces namespaces
	// clusterWide is for namespaces without the annotation; allowed, unless
	// empty, is all that pods of a namespace may select.
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
	if !ok || !is(a, "", "pods") {
		return nil
	}
	want, err := p.of(ctx, a.GetNamespace())
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
	if !ok || !is(a, "", "pods") {
		return nil
	}
	want, err := p.of(ctx, a.GetNamespace())
	if err != nil {
		return err
	}
	return p.check(a, pod, want)
}

// check refuses a pod that selects other nodes than those of its namespace, or by
// labels that its namespace may not.
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

// of is the selector of a namespace.
func (p *podNodeSelector) of(ctx context.Context, name string) (labels.Set, error) {
	ns, err := p.namespaces.get(ctx, name)
	if err != nil {
		return nil, err
	}
	if text, ok := ns.Annotations[nodeSelectorAnnotation]; ok {
		return labels.ConvertSelectorToLabelsMap(text)
	}
	return p.clusterWide, nil
}

// namespaces finds namespaces, those too of which the informer has not heard.
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
