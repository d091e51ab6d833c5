package objectcache

import (
	"context"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// API gets objects from the API server without caching them, because the node authorizer does not allow a
// node to watch them, or because they are needed rarely.
type API struct {
	// Kube may be nil. The methods then return ErrNoAPI.
	Kube kubernetes.Interface
}

// Claim gets the PersistentVolumeClaim of that name. It returns ErrNoAPI if the kubelet has no API server.
func (a API) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if a.Kube == nil {
		return nil, ErrNoAPI
	}
	return a.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume gets the PersistentVolume of that name. It returns ErrNoAPI if the kubelet has no API server.
func (a API) Volume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	if a.Kube == nil {
		return nil, ErrNoAPI
	}
	return a.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// Secret gets the Secret of that name. It returns ErrNoAPI if the kubelet has no API server.
func (a API) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	if a.Kube == nil {
		return nil, ErrNoAPI
	}
	return a.Kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ServiceAccount gets the ServiceAccount that the pod uses. It returns ErrNoAPI if the kubelet has no API server.
func (a API) ServiceAccount(ctx context.Context, pod *v1.Pod) (*v1.ServiceAccount, error) {
	if a.Kube == nil {
		return nil, ErrNoAPI
	}
	return a.Kube.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
}
