package rest

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// review contains the attributes of an admission request. old is nil for creations, obj for
// deletions.
type review struct {
	operation admission.Operation
	kind      schema.GroupVersionKind
	obj, old  runtime.Object
	name      string
	options   runtime.Object
	dryRun    bool
}

// admitter calls the admission plugins and webhooks for the writes of a request.
type admitter struct{ *call }

// attributes returns the description of a write for admission plugins. A review without kind is
// about an object of the requested resource.
func (c admitter) attributes(r review) admission.Attributes {
	user, _ := apirequest.UserFrom(c.ctx)
	if r.kind.Kind == "" {
		r.kind = c.res.GVK()
	}
	return admission.NewAttributesRecord(r.obj, r.old, r.kind, c.info.Namespace, r.name, c.res.GVR(),
		c.info.Subresource, r.operation, r.options, r.dryRun, user)
}

// runMutating calls mutating admission, which may change r.obj. An error means that the write is rejected. It does
// nothing if no plugin handles the operation.
func (c admitter) runMutating(ctx context.Context, r review) error {
	if c.mutate == nil || !c.mutate.Handles(r.operation) {
		return nil
	}
	return c.mutate.Admit(ctx, c.attributes(r), c.objects())
}

// runValidating calls validating admission with r.obj as it will be stored. An error means that the write is
// rejected. It does nothing if no plugin handles the operation.
func (c admitter) runValidating(ctx context.Context, r review) error {
	if c.validate == nil || !c.validate.Handles(r.operation) {
		return nil
	}
	return c.validate.Validate(ctx, c.attributes(r), c.objects())
}

// createOptionsOf converts the options of an update that creates a missing object to those of a
// creation, for admission.
func createOptionsOf(o *metav1.UpdateOptions) *metav1.CreateOptions {
	c := &metav1.CreateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	c.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return c
}

// updateOptionsOf converts the options of a patch to those of an update, for admission.
func updateOptionsOf(o *metav1.PatchOptions) *metav1.UpdateOptions {
	u := &metav1.UpdateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	u.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return u
}
