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

// definitions are what makes and takes back custom resources. Their names are those
// of the resources.
var definitions = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// followDefinitions begins to follow them, once: a custom resource is no longer asked
// for when its definition is gone, and counted as soon as it is there again. mu is
// held.
func (c *Controller) followDefinitions(ctx context.Context) error {
	if c.defined {
		return nil
	}
	i, err := c.cfg.Informer(ctx, definitions.WithResource("customresourcedefinitions"), definitions.WithKind("CustomResourceDefinition"))
	if err == nil {
		_, err = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    c.define,
			UpdateFunc: func(_, obj any) { c.define(obj) },
			DeleteFunc: c.undefine,
		})
	}
	if err != nil {
		return fmt.Errorf("following definitions of custom resources: %w", err)
	}
	c.defined = true
	return nil
}

// define has quotas looked at that limit a resource which is not counted yet.
func (c *Controller) define(obj any) {
	gr, ok := defines(obj)
	if !ok {
		return
	}
	c.mu.Lock()
	_, known := c.followed[gr]
	c.mu.Unlock()
	if !known {
		c.addLimiting(gr)
	}
}

// undefine ends the counting of a resource.
func (c *Controller) undefine(obj any) {
	gr, ok := defines(obj)
	if !ok {
		return
	}
	c.mu.Lock()
	f, known := c.followed[gr]
	delete(c.followed, gr)
	c.mu.Unlock()
	if !known {
		return
	}
	c.evaluators.Remove(f.evaluator)
	f.stop()
	c.addLimiting(gr)
}

func defines(obj any) (gr schema.GroupResource, ok bool) {
	m, ok := control.Object[metav1.Object](obj)
	if !ok {
		return gr, false
	}
	return schema.ParseGroupResource(m.GetName()), true
}

// addLimiting has all quotas looked at that limit how many objects of a resource
// there are.
func (c *Controller) addLimiting(gr schema.GroupResource) {
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
