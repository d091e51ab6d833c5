package objectcache

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Claims gets claims and volumes from the API server, because the node authorizer does not allow
// a node to watch them.
type Claims struct {
	// Kube may be nil. The methods then return ErrNoAPI.
	Kube kubernetes.Interface
}

// Claim implements volume.Claims.
func (c Claims) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if c.Kube == nil {
		return nil, ErrNoAPI
	}
	return c.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume implements volume.Claims.
func (c Claims) Volume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	if c.Kube == nil {
		return nil, ErrNoAPI
	}
	return c.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}
