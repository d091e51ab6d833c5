package policy

import (
	"context"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func podDisruptionBudget() api.Kind[*policyv1.PodDisruptionBudget] {
	return api.Kind[*policyv1.PodDisruptionBudget]{
		Names:     api.Names{Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets", ShortNames: []string{"pdb"}},
		Group:     policyv1.GroupName,
		Version:   "v1",
		PlainMeta: true,
		Scope:     api.Namespaced,
		New:       func() *policyv1.PodDisruptionBudget { return &policyv1.PodDisruptionBudget{} },
		NewList:   func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		PrepareCreate: func(_ context.Context, b *policyv1.PodDisruptionBudget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{}
			b.Generation = 1
		},
		ForbidUnconditionalUpdate: true,
		Validate: func(_ context.Context, b *policyv1.PodDisruptionBudget) field.ErrorList {
			return validateSpec(&b.Spec, nil, field.NewPath("spec"))
		},
		Update: api.KindUpdate[*policyv1.PodDisruptionBudget]{
			Prepare: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) {
				old.Status.DeepCopyInto(&b.Status)
				b.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(b.Spec, old.Spec) {
					b.Generation++
				}
			},
			Validate: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) field.ErrorList {
				return validateSpec(&b.Spec, old.Spec.Selector, field.NewPath("spec"))
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*policyv1.PodDisruptionBudget]{
			"status": {
				Prepare: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) {
					old.Spec.DeepCopyInto(&b.Spec)
					b.Generation = old.Generation
				},
				Validate: func(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
					return validateStatus(&b.Status, field.NewPath("status"))
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Min Available", "string", "The minimum number of pods that must be available."),
			api.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
			api.Column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
			api.AgeColumn,
		},
		Row: func(b *policyv1.PodDisruptionBudget) []any {
			return []any{b.Name, cell(b.Spec.MinAvailable), cell(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed), api.Age(b.CreationTimestamp)}
		},
	}
}

// cell returns the table cell of a number or percentage, "N/A" if it is not set.
func cell(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

// validateSpec validates a budget's spec. stored is the selector of the stored budget, whose
// invalid label values remain valid, or nil on create.
func validateSpec(spec *policyv1.PodDisruptionBudgetSpec, stored *metav1.LabelSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, *spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, validateAmount(spec.MinAvailable, path.Child("minAvailable"))...)
	errs = append(errs, validateAmount(spec.MaxUnavailable, path.Child("maxUnavailable"))...)
	errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, validate.SelectorOptions(stored), path.Child("selector"))...)
	policies := []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}
	if p := spec.UnhealthyPodEvictionPolicy; p != nil && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(path.Child("unhealthyPodEvictionPolicy"), *p, policies))
	}
	return errs
}

func validateAmount(v *intstr.IntOrString, path *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	if v.Type == intstr.Int {
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), path)
	}
	var errs field.ErrorList
	for _, msg := range validation.IsValidPercent(v.StrVal) {
		errs = append(errs, field.Invalid(path, *v, msg))
	}
	if n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, false); len(errs) == 0 && err == nil && n > 100 {
		errs = append(errs, field.Invalid(path, *v, "must not be greater than 100%"))
	}
	return errs
}

func validateStatus(s *policyv1.PodDisruptionBudgetStatus, path *field.Path) field.ErrorList {
	errs := validate.Conditions(s.Conditions, path.Child("conditions"))
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"disruptionsAllowed", s.DisruptionsAllowed}, {"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy}, {"expectedPods", s.ExpectedPods},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(f.value), path.Child(f.name))...)
	}
	return errs
}
