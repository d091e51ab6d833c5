package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// namespaceAutoProvision is the plugin NamespaceAutoProvision. It creates the missing namespaces of
// new objects.
type namespaceAutoProvision struct {
	operations
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface
}

// newNamespaceAutoProvision creates the plugin NamespaceAutoProvision. It never fails.
func newNamespaceAutoProvision(cfg *Config) (admission.Interface, error) {
	return &namespaceAutoProvision{onCreate, cfg.Informers.Core().V1().Namespaces().Lister(), cfg.Kube}, nil
}

// Admit creates the namespace of a new object if the informer does not have it. An existing one is not an error; any
// other failure rejects the request. It does nothing on a dry run and for objects without a namespace.
func (p *namespaceAutoProvision) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	// A dry run creates nothing.
	if a.IsDryRun() || a.GetNamespace() == "" || a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		return nil
	}
	if _, err := p.lister.Get(a.GetNamespace()); err == nil {
		return nil
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.GetNamespace()}}
	if _, err := p.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return admission.NewForbidden(a, err)
	}
	return nil
}
