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

// protectedNamespaces lists the namespaces that cannot be deleted.
var protectedNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// namespaceLifecycle is the plugin NamespaceLifecycle. It rejects the creation and update of objects in namespaces
// that do not exist, the creation of objects in namespaces that are being deleted, and the deletion of namespaces
// that the cluster needs.
type namespaceLifecycle struct {
	operations
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface

	mu sync.Mutex // guards deleted
	// deleted contains recently deleted namespaces. Until the stored time they are read from the API, because the
	// informer may not have received the deletion.
	deleted map[string]time.Time
}

// informerBypassTime is how long after the deletion of a namespace was requested the informer is
// not trusted to know the state of the namespace.
const informerBypassTime = 30 * time.Second

// newNamespaceLifecycle creates the plugin NamespaceLifecycle. It never fails.
func newNamespaceLifecycle(cfg *Config) (admission.Interface, error) {
	return &namespaceLifecycle{
		operations: operations{admission.Create, admission.Update, admission.Delete},
		lister:     cfg.Informers.Core().V1().Namespaces().Lister(),
		kube:       cfg.Kube,
		deleted:    map[string]time.Time{},
	}, nil
}

// Admit rejects the deletion of a protected namespace, the creation and update of an object in a namespace that does
// not exist, and the creation of an object in a namespace that is being deleted. It allows access reviews in any
// namespace, and changes nothing. The check runs in the mutating phase, before all other plugins, so that no plugin
// creates anything for a namespace that does not exist.
func (p *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	if r.Group == "" && r.Resource == "namespaces" {
		if a.GetOperation() == admission.Delete {
			if slices.Contains(protectedNamespaces, a.GetName()) {
				return apierrors.NewForbidden(r.GroupResource(), a.GetName(), errors.New("this namespace may not be deleted"))
			}
			p.bypassInformer(a.GetName())
		}
		return nil
	}
	namespace := a.GetNamespace()
	if namespace == "" || a.GetOperation() == admission.Delete {
		return nil
	}
	// Access reviews are always allowed.
	if r.Group == "authorization.k8s.io" && r.Resource == "localsubjectaccessreviews" {
		return nil
	}
	ns, err := p.lister.Get(namespace)
	if err != nil || p.bypassesInformer(namespace) {
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

// bypassInformer must be called when the deletion of a namespace is requested. For informerBypassTime, requests in the
// namespace then read it from the API instead of the informer.
func (p *namespaceLifecycle) bypassInformer(namespace string) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, until := range p.deleted {
		if now.After(until) {
			delete(p.deleted, name)
		}
	}
	p.deleted[namespace] = now.Add(informerBypassTime)
}

// bypassesInformer reports whether the deletion of the namespace was requested within informerBypassTime, so that the
// informer may not have seen it and the namespace must be read from the API.
func (p *namespaceLifecycle) bypassesInformer(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.deleted[namespace]
	return ok && time.Now().Before(until)
}

// namespaceExists is the plugin NamespaceExists. It rejects all requests in namespaces that do not
// exist.
type namespaceExists struct {
	operations
	lister corelisters.NamespaceLister
	kube   kubernetes.Interface
}

// newNamespaceExists creates the plugin NamespaceExists. It never fails.
func newNamespaceExists(cfg *Config) (admission.Interface, error) {
	return &namespaceExists{
		operations: operations{admission.Create, admission.Update, admission.Delete},
		lister:     cfg.Informers.Core().V1().Namespaces().Lister(),
		kube:       cfg.Kube,
	}, nil
}

// Validate rejects the request with a NotFound error if its namespace is neither in the informer nor in the API.
// Requests without a namespace and for Namespaces are not checked.
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
