package applyset

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// WaitFor waits until another process has applied a set completely, or, if exists is false, has deleted it. It returns
// the cause of ctx when that is done, and an error if the API server closes the watch.
func WaitFor(ctx context.Context, kube kubernetes.Interface, set Set, exists bool) error {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", set.Name).String()}
	configMaps := kube.CoreV1().ConfigMaps(ParentNamespace)
	list, err := configMaps.List(ctx, opts)
	if err != nil {
		return fmt.Errorf("reading ConfigMap %s/%s: %w", ParentNamespace, set.Name, err)
	}
	done := func(cm *corev1.ConfigMap) bool {
		if cm == nil || !exists {
			return (cm != nil) == exists
		}
		return cm.Annotations[AppliedAnnotation] != ""
	}
	var current *corev1.ConfigMap
	if len(list.Items) > 0 {
		current = &list.Items[0]
	}
	if done(current) {
		return nil
	}
	opts.ResourceVersion = list.ResourceVersion
	w, err := configMaps.Watch(ctx, opts)
	if err != nil {
		return fmt.Errorf("watching ConfigMap %s/%s: %w", ParentNamespace, set.Name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.Join(context.Cause(ctx), errors.New("the watch of the set has ended"))
			}
			cm, isConfigMap := event.Object.(*corev1.ConfigMap)
			if !isConfigMap {
				continue
			}
			if event.Type == watch.Deleted {
				cm = nil
			}
			if done(cm) {
				return nil
			}
		}
	}
}
