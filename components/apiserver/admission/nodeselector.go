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

// nodeSelectorAnnotation is the annotation of a namespace with the node selector for its pods.
const nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"

// podNodeSelector is the plugin PodNodeSelector. It adds the node selector of the namespace, or the cluster's
// default, to new pods.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#podnodeselector
type podNodeSelector struct {
	operations
	namespaces namespaces
	// clusterWide is the node selector for namespaces without the annotation. allowed contains, by namespace, the
	// only labels that the node selectors of its pods may contain. An empty set allows all.
	clusterWide labels.Set
	allowed     map[string]labels.Set
}

// newPodNodeSelector creates the plugin PodNodeSelector from its configuration file, without which no namespace is
// restricted. It returns an error if the file or a selector in it is invalid.
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

// Admit merges the namespace's node selector into that of a new pod. It rejects the pod if the two conflict or the
// pod selects labels that are not allowed in the namespace.
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

// Validate repeats the check of Admit after all mutating plugins, which may have changed the node selector of the
// pod.
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

// check rejects a pod whose node selector conflicts with want, the selector of its namespace, or
// contains labels that are not allowed in the namespace.
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

// namespaceSelector returns the node selector in the namespace's annotation, even if it is empty, or the cluster-wide
// one if there is no annotation. It returns an error if the namespace does not exist or the annotation is invalid.
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

// newNamespaces returns a namespaces that reads the informer and the client of cfg.
func newNamespaces(cfg *Config) namespaces {
	return namespaces{cfg.Informers.Core().V1().Namespaces().Lister(), cfg.Kube}
}

// get returns the namespace with the name. It is shared and must not be modified. It returns a
// NotFound error if the namespace does not exist.
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
