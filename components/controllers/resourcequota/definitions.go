package resourcequota

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// definitions is the group version of CustomResourceDefinitions. Their names are those of the
// resources they define.
var definitions = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// followDefinitions starts to watch CustomResourceDefinitions, unless they are already watched. A custom resource is no
// longer watched after its definition is deleted, and is counted again as soon as the definition is recreated. The
// caller must hold mu.
func (c *Controller) followDefinitions(ctx context.Context) error {
	if c.watchesDefinitions {
		return nil
	}
	i, err := c.cfg.Informer(ctx, definitions.WithResource("customresourcedefinitions"), definitions.WithKind("CustomResourceDefinition"))
	if err == nil {
		_, err = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    c.definitionChanged,
			UpdateFunc: func(_, obj any) { c.definitionChanged(obj) },
			DeleteFunc: c.definitionDeleted,
		})
	}
	if err != nil {
		return fmt.Errorf("watching custom resource definitions: %w", err)
	}
	c.watchesDefinitions = true
	return nil
}

// definitionChanged enqueues the quotas that limit the resource that obj defines, if it is not counted yet. obj is a
// CustomResourceDefinition.
func (c *Controller) definitionChanged(obj any) {
	gr, ok := defines(obj)
	if !ok {
		return
	}
	c.mu.Lock()
	_, known := c.dynamic[gr]
	c.mu.Unlock()
	if !known {
		c.enqueueLimiting(gr)
	}
}

// definitionDeleted stops watching and counting the resource that obj defined, and enqueues the quotas that limit it.
func (c *Controller) definitionDeleted(obj any) {
	gr, ok := defines(obj)
	if !ok {
		return
	}
	c.mu.Lock()
	f, known := c.dynamic[gr]
	delete(c.dynamic, gr)
	c.mu.Unlock()
	if !known {
		return
	}
	c.evaluators.Remove(f.evaluator)
	f.stop()
	c.enqueueLimiting(gr)
}

// defines returns the resource that a CustomResourceDefinition defines. obj may also be the last known state of a
// deleted one.
func defines(obj any) (gr schema.GroupResource, ok bool) {
	m, ok := control.Object[metav1.Object](obj)
	if !ok {
		return gr, false
	}
	return schema.ParseGroupResource(m.GetName()), true
}

// enqueueLimiting enqueues all quotas that limit the number of objects of gr.
func (c *Controller) enqueueLimiting(gr schema.GroupResource) {
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range all {
		if _, ok := q.Spec.Hard[corev1.ResourceName(countPrefix+gr.String())]; ok {
			c.AddObject(q)
		}
	}
}
