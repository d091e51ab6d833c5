package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Pods reads pods as a cache has them. They are shared, and nobody writes to
// them.
type Pods interface {
	// Pod returns false when the cache has none: it may be behind.
	Pod(namespace, name string) (*corev1.Pod, bool)
	// ListPods returns all of a namespace.
	ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error)
}

// pods returns Config.Pods, or those of an informer.
func (c *Config) pods() Pods {
	if c.Pods != nil {
		return c.Pods
	}
	return informedPods{c.Informers.Core().V1().Pods().Lister()}
}

type informedPods struct{ lister corelisters.PodLister }

// Pod as Pods.
func (p informedPods) Pod(namespace, name string) (*corev1.Pod, bool) {
	pod, err := p.lister.Pods(namespace).Get(name)
	return pod, err == nil
}

// ListPods as Pods.
func (p informedPods) ListPods(_ context.Context, namespace string) ([]*corev1.Pod, error) {
	return p.lister.Pods(namespace).List(labels.Everything())
}
