package tokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// live is a Getter that reads all objects from the API server.
type live struct {
	kube kubernetes.Interface
}

// LiveGetter returns a Getter that reads all objects from the API server, so that it sees all
// previous writes. Issuers use it.
func LiveGetter(kube kubernetes.Interface) Getter { return live{kube} }

// ServiceAccount implements Getter. It requests the service account from the API server.
func (g live) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return g.kube.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Pod implements Getter. It requests the pod from the API server.
func (g live) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return g.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret implements Getter. It requests the Secret from the API server.
func (g live) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return g.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Node implements Getter. It requests the node from the API server.
func (g live) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return g.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// cached is the Getter that CachedGetter returns.
type cached struct {
	live
	accounts corelisters.ServiceAccountLister
	pods     Pods
}

// Pods reads pods from a cache, such as that of the API server, so that verifying a token requires no request.
type Pods interface {
	// Pod returns a pod. It returns false if the cache does not contain it, for example because the
	// cache is not up to date. The caller must not modify the pod.
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// CachedGetter returns a Getter for verifying tokens. It reads service accounts from an informer of inf, which the
// caller starts, and pods from a cache, and from the API server if they are missing there. Secrets and nodes, to
// which few tokens are bound, are always read from the API server.
func CachedGetter(kube kubernetes.Interface, inf informers.SharedInformerFactory, pods Pods) Getter {
	return cached{
		live:     live{kube},
		accounts: inf.Core().V1().ServiceAccounts().Lister(),
		pods:     pods,
	}
}

// ServiceAccount implements Getter. It reads the informer's cache, and asks the API server if the cache does not
// contain the service account. The result can be outdated.
func (g cached) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if sa, err := g.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return sa, nil
	}
	return g.live.ServiceAccount(ctx, namespace, name)
}

// Pod implements Getter. It reads the cache, and asks the API server if the cache does not contain the pod. The
// result can be outdated.
func (g cached) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod, ok := g.pods.Pod(namespace, name); ok {
		return pod, nil
	}
	return g.live.Pod(ctx, namespace, name)
}
