package tokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// live reads everything through the API.
type live struct {
	kube kubernetes.Interface
}

// LiveGetter sees everything that was written before: for issuing.
func LiveGetter(kube kubernetes.Interface) Getter { return live{kube} }

func (g live) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return g.kube.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (g live) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return g.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (g live) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return g.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (g live) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return g.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// cached reads what every request needs from informers.
type cached struct {
	live
	accounts corelisters.ServiceAccountLister
	pods     Pods
}

// Pods reads pods from a cache.
type Pods interface {
	// Pod returns false when the cache has none: it may be behind. Nobody
	// writes to what it returns.
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// CachedGetter reads service accounts from an informer and pods from a cache,
// and through the API what these do not have yet: for verifying. Secrets and
// nodes, to which few tokens are bound, always come through the API.
func CachedGetter(kube kubernetes.Interface, inf informers.SharedInformerFactory, pods Pods) Getter {
	return cached{
		live:     live{kube},
		accounts: inf.Core().V1().ServiceAccounts().Lister(),
		pods:     pods,
	}
}

func (g cached) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if sa, err := g.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return sa, nil
	}
	return g.live.ServiceAccount(ctx, namespace, name)
}

func (g cached) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod, ok := g.pods.Pod(namespace, name); ok {
		return pod, nil
	}
	return g.live.Pod(ctx, namespace, name)
}
