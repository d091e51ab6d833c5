package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
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
			var e checker
			spec := field.NewPath("spec")
			e.Add(apivalidation.ValidateAnnotations(t.Spec.Annotations, spec.Child("metadata", "annotations")))
			e.Add(metavalidation.ValidateLabels(t.Spec.Labels, spec.Child("metadata", "labels")))
			e.claim(&t.Spec.Spec.Devices, spec.Child("spec", "devices"))
			e.Add(declared(ctx, resourcev1.Validate_ResourceClaimTemplateSpec, spec, &t.Spec, nil))
			return e.List
		},
		Update: api.KindUpdate[*resourcev1.ResourceClaimTemplate]{
			Prepare: func(_ context.Context, t, old *resourcev1.ResourceClaimTemplate) {
				dropClaim(&t.Spec.Spec, &old.Spec.Spec)
			},
			Validate: func(_ context.Context, t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
				return apivalidation.ValidateImmutableField(t.Spec, old.Spec, field.NewPath("spec"))
			},
		},
	}
}
