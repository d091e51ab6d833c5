package rest

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// review is one question to admission. Old is nil for creations, obj for
// deletions.
type review struct {
	operation admission.Operation
	kind      schema.GroupVersionKind
	obj, old  runtime.Object
	name      string
	options   runtime.Object
	dryRun    bool
}

func (c *call) attributes(r review) admission.Attributes {
	user, _ := apirequest.UserFrom(c.ctx)
	if r.kind.Kind == "" {
		r.kind = c.res.GVK()
	}
	return admission.NewAttributesRecord(r.obj, r.old, r.kind, c.info.Namespace, r.name, c.res.GVR(),
		c.info.Subresource, r.operation, r.options, r.dryRun, user)
}

// admit lets admission change r.obj, or refuse it.
func (c *call) admit(ctx context.Context, r review) error {
	if c.mutate == nil || !c.mutate.Handles(r.operation) {
		return nil
	}
	return c.mutate.Admit(ctx, c.attributes(r), c.objects())
}

// confirm lets admission refuse what will be written.
func (c *call) confirm(ctx context.Context, r review) error {
	if c.validate == nil || !c.validate.Handles(r.operation) {
		return nil
	}
	return c.validate.Validate(ctx, c.attributes(r), c.objects())
}

func createOptionsOf(o *metav1.UpdateOptions) *metav1.CreateOptions {
	c := &metav1.CreateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	c.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return c
}

func updateOptionsOf(o *metav1.PatchOptions) *metav1.UpdateOptions {
	u := &metav1.UpdateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	u.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return u
}
