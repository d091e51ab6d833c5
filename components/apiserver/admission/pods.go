package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Pods reads pods from a cache. The pods are shared and must not be modified.
type Pods interface {
	// Pod returns a pod, or false if the cache does not have it. The cache may lag behind.
	Pod(namespace, name string) (*corev1.Pod, bool)
	// ListPods returns all pods of a namespace that the cache has.
	ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error)
}

// pods returns Config.Pods or, if that is nil, a reader of a pod informer.
func (c *Config) pods() Pods {
	if c.Pods != nil {
		return c.Pods
	}
	return informedPods{c.Informers.Core().V1().Pods().Lister()}
}

// informedPods is a source of pods that reads them from an informer.
type informedPods struct{ lister corelisters.PodLister }

// Pod returns a pod from the informer, or false if it is not there.
func (p informedPods) Pod(namespace, name string) (*corev1.Pod, bool) {
	pod, err := p.lister.Pods(namespace).Get(name)
	return pod, err == nil
}

// ListPods returns the pods of a namespace from the informer.
func (p informedPods) ListPods(_ context.Context, namespace string) ([]*corev1.Pod, error) {
	return p.lister.Pods(namespace).List(labels.Everything())
}
