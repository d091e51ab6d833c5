package admission

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// immortal namespaces cannot be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// namespaceLifecycle refuses to create in namespaces that do not exist or are
// being deleted, and to delete those that the cluster needs.
type namespaceLifecycle struct {
	operations
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface

	mu sync.Mutex // guards deleted
	// deleted holds until when namespaces, whose deletion came by, are looked
	// up in the API: the informer may not have heard of it.
	deleted map[string]time.Time
}

// distrust is how long the informer is not believed after a deletion.
const distrust = 30 * time.Second

func newNamespaceLifecycle(cfg *Config) (admission.Interface, error) {
	return &namespaceLifecycle{
		operations: operations{admission.Create, admission.Update, admission.Delete},
		lister:     cfg.Informers.Core().V1().Namespaces().Lister(),
		kube:       cfg.Kube,
		deleted:    map[string]time.Time{},
	}, nil
}

// Admit implements admission.MutationInterface: it comes before all others, so
// that nothing is made for a namespace that is not there.
func (p *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	if r.Group == "" && r.Resource == "namespaces" {
		if a.GetOperation() == admission.Delete {
			if slices.Contains(immortal, a.GetName()) {
				return apierrors.NewForbidden(r.GroupResource(), a.GetName(), errors.New("this namespace may not be deleted"))
			}
			p.distrust(a.GetName())
		}
		return nil
	}
	namespace := a.GetNamespace()
	if namespace == "" || a.GetOperation() == admission.Delete {
		return nil
	}
	// One may always ask what one may do.
	if r.Group == "authorization.k8s.io" && r.Resource == "localsubjectaccessreviews" {
		return nil
	}
	ns, err := p.lister.Get(namespace)
	if err != nil || p.distrusted(namespace) {
		ns, err = p.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return apierrors.NewNotFound(corev1.Resource("namespaces"), namespace)
		}
		if err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	if a.GetOperation() != admission.Create || ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	err = forbid(a, "unable to create new content in namespace %s because it is being terminated", namespace)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: "namespace " + namespace + " is being terminated",
			Field:   "metadata.namespace",
		})
	}
	return err
}

func (p *namespaceLifecycle) distrust(namespace string) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, until := range p.deleted {
		if now.After(until) {
			delete(p.deleted, name)
		}
	}
	p.deleted[namespace] = now.Add(distrust)
}

func (p *namespaceLifecycle) distrusted(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.deleted[namespace]
	return ok && time.Now().Before(until)
}

// namespaceExists refuses everything in namespaces that do not exist.
type namespaceExists struct {
	operations
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface
}

func newNamespaceExists(cfg *Config) (admission.Interface, error) {
	return &namespaceExists{
		operations: operations{admission.Create, admission.Update, admission.Delete},
		lister:     cfg.Informers.Core().V1().Namespaces().Lister(),
		kube:       cfg.Kube,
	}, nil
}

// Validate implements admission.ValidationInterface.
func (p *namespaceExists) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetResource().GroupResource() == corev1.Resource("namespaces") {
		return nil
	}
	if _, err := p.lister.Get(a.GetNamespace()); err == nil {
		return nil
	}
	if _, err := p.kube.CoreV1().Namespaces().Get(ctx, a.GetNamespace(), metav1.GetOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return err
		}
		return apierrors.NewInternalError(err)
	}
	return nil
}
