package kubelet

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/kubelet/pod/objectcache"
)

// apiClaims gets claims and volumes from the API server, because the node authorizer does not allow
// a node to watch them.
type apiClaims struct{ kube kubernetes.Interface }

// Claim implements volume.Claims.
func (c apiClaims) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if c.kube == nil {
		return nil, objectcache.ErrNoAPI
	}
	return c.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume implements volume.Claims.
func (c apiClaims) Volume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	if c.kube == nil {
		return nil, objectcache.ErrNoAPI
	}
	return c.kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}
