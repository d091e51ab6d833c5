package resource

import (
	"context"
	"reflect"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func resourceClaimTemplate() api.Kind[*resourcev1.ResourceClaimTemplate] {
	return api.Kind[*resourcev1.ResourceClaimTemplate]{
		Names:   api.Names{Kind: "ResourceClaimTemplate", Plural: "resourceclaimtemplates"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *resourcev1.ResourceClaimTemplate { return &resourcev1.ResourceClaimTemplate{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },

		Default: func(t *resourcev1.ResourceClaimTemplate) { defaultClaim(&t.Spec.Spec) },
		PrepareCreate: func(_ context.Context, t *resourcev1.ResourceClaimTemplate) {
			dropClaim(&t.Spec.Spec, nil)
		},
		Validate: func(ctx context.Context, t *resourcev1.ResourceClaimTemplate) field.ErrorList {
			return checkTemplate(ctx, t, nil)
		},
		Update: api.KindUpdate[*resourcev1.ResourceClaimTemplate]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, t, old *resourcev1.ResourceClaimTemplate) {
				dropClaim(&t.Spec.Spec, &old.Spec.Spec)
			},
			Validate: checkTemplate,
		},
	}
}

// checkTemplate validates a ResourceClaimTemplate, whose spec is immutable. old is the stored
// template, nil on create.
func checkTemplate(ctx context.Context, t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	var e checker
	spec := field.NewPath("spec")
	checkTemplateMeta(&e.Errors, &t.Spec.ObjectMeta, spec.Child("metadata"))
	e.claim(&t.Spec.Spec.Devices, spec.Child("spec", "devices"))
	var was *resourcev1.ResourceClaimTemplateSpec
	if old != nil {
		was = &old.Spec
		e.Add(apivalidation.ValidateImmutableField(t.Spec, old.Spec, spec))
	}
	e.Add(declared(ctx, resourcev1.Validate_ResourceClaimTemplateSpec, spec, &t.Spec, was))
	return e.List
}

// checkTemplateMeta checks that the metadata in a template only contains labels and annotations.
func checkTemplateMeta(e *validate.Errors, m *metav1.ObjectMeta, at *field.Path) {
	e.Add(apivalidation.ValidateAnnotations(m.Annotations, at.Child("annotations")))
	e.Add(metavalidation.ValidateLabels(m.Labels, at.Child("labels")))
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if name != "Labels" && name != "Annotations" && !v.Field(i).IsZero() {
			e.Forbidden(at.Child(strings.ToLower(name[:1])+name[1:]), "cannot be set")
		}
	}
}
