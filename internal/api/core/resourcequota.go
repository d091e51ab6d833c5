package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func resourceQuota() api.Kind[*corev1.ResourceQuota] {
	return api.Kind[*corev1.ResourceQuota]{
		Names: api.Names{
			Kind:       "ResourceQuota",
			Plural:     "resourcequotas",
			ShortNames: []string{"quota"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.ResourceQuota { return &corev1.ResourceQuota{} },
		NewList: func() runtime.Object { return &corev1.ResourceQuotaList{} },
		Default: func(q *corev1.ResourceQuota) {
			validate.RoundUp(q.Spec.Hard)
			validate.RoundUp(q.Status.Hard)
			validate.RoundUp(q.Status.Used)
		},
		PrepareCreate: func(_ context.Context, q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
		Warnings: func(_ context.Context, q, old *corev1.ResourceQuota) []string {
			if old != nil {
				return nil
			}
			return quotaWarnings(q.Spec.Hard)
		},
		Validate: func(_ context.Context, q *corev1.ResourceQuota) field.ErrorList {
			e := &validate.Errors{}
			quotaSpec(e, &q.Spec, field.NewPath("spec"))
			return e.List
		},
		Update: api.KindUpdate[*corev1.ResourceQuota]{
			Prepare: func(_ context.Context, q, old *corev1.ResourceQuota) {
				old.Status.DeepCopyInto(&q.Status)
			},
			Validate:    validateQuotaUpdate,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.ResourceQuota]{
			"status": {
				Prepare: func(_ context.Context, q, old *corev1.ResourceQuota) {
					old.Spec.DeepCopyInto(&q.Spec)
				},
				Validate: func(_ context.Context, q, _ *corev1.ResourceQuota) field.ErrorList {
					e := &validate.Errors{}
					quotaList(e, q.Status.Hard, field.NewPath("status", "hard"))
					quotaList(e, q.Status.Used, field.NewPath("status", "used"))
					return e.List
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
			api.Column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
			api.AgeColumn,
		},
		Row: quotaRow,
	}
}

func quotaList(e *validate.Errors, list corev1.ResourceList, path *field.Path) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at := path.Key(string(name))
		validate.QuotaResourceName(e, at, name)
		e.Quantity(at, name, list[name])
	}
}

// quotaSpec validates the spec of a quota: its limits, and that its scopes exist, fit the limited resources and do not
// contradict each other.
func quotaSpec(e *validate.Errors, spec *corev1.ResourceQuotaSpec, path *field.Path) {
	quotaList(e, spec.Hard, path.Child("hard"))
	names := slices.Sorted(maps.Keys(spec.Hard))
	misfit := func(scope corev1.ResourceQuotaScope) int {
		n := 0
		for _, name := range names {
			if validate.IsQuota(name) && !scopeFits(scope, name) {
				n++
			}
		}
		return n
	}
	at := path.Child("scopes")
	for _, scope := range spec.Scopes {
		if !isScope(scope) {
			e.Invalid(at, spec.Scopes, "unsupported scope")
		}
		for range misfit(scope) {
			e.Invalid(at, spec.Scopes, "unsupported scope applied to resource")
		}
	}
	scopeConflicts(e, spec.Scopes, spec.Scopes, at)
	if spec.ScopeSelector == nil {
		return
	}
	at = path.Child("scopeSelector", "matchExpressions")
	var scopes []corev1.ResourceQuotaScope
	for _, x := range spec.ScopeSelector.MatchExpressions {
		scopes = append(scopes, x.ScopeName)
		if !isScope(x.ScopeName) {
			e.Invalid(at.Child("scopeName"), x.ScopeName, "unsupported scope")
		}
		for range misfit(x.ScopeName) {
			e.Invalid(at, spec.ScopeSelector, "unsupported scope applied to resource")
		}
		scopeExpression(e, x, at)
	}
	scopeConflicts(e, scopes, spec.Scopes, at)
}

// scopeExpression validates the operator and the values of one requirement of a scope selector.
func scopeExpression(e *validate.Errors, x corev1.ScopedResourceSelectorRequirement, at *field.Path) {
	switch x.ScopeName {
	case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		if x.Operator != corev1.ScopeSelectorOpExists {
			e.Invalid(at.Child("operator"), x.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity")
		}
	}
	switch x.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(x.Values) == 0 {
			e.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(x.Values) > 0 {
			e.Invalid(at.Child("values"), x.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
		}
	default:
		e.Invalid(at.Child("operator"), x.Operator, "not a valid selector operator")
	}
}

// isScope reports whether a scope of quotas exists.
func isScope(scope corev1.ResourceQuotaScope) bool {
	switch scope {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass:
		return true
	}
	return false
}

// scopeFits reports whether a quota with the scope can limit the resource name, because the scope
// applies to the objects that the resource counts.
func scopeFits(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		switch name {
		case corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU,
			corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
			return true
		}
		return false
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
	}
	return true
}

// scopeConflicts adds an error for each pair of scopes of which one is the opposite of the other. shown is the value in
// the error.
func scopeConflicts(e *validate.Errors, scopes, shown []corev1.ResourceQuotaScope, at *field.Path) {
	for _, pair := range [...][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			e.Invalid(at, shown, "conflicting scopes")
		}
	}
}

// validateQuotaUpdate validates an update of a ResourceQuota. Its set of scopes must not change.
func validateQuotaUpdate(_ context.Context, q, old *corev1.ResourceQuota) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec")
	quotaSpec(e, &q.Spec, path)
	set := func(scopes []corev1.ResourceQuotaScope) []corev1.ResourceQuotaScope {
		return slices.Compact(slices.Sorted(slices.Values(scopes)))
	}
	if !slices.Equal(set(q.Spec.Scopes), set(old.Spec.Scopes)) {
		e.Invalid(path.Child("scopes"), q.Spec.Scopes, apivalidation.FieldImmutableErrorMsg)
	}
	return e.List
}

// quotaRow returns the cells of a quota: its limits with the usage, separated into requests and limits.
func quotaRow(q *corev1.ResourceQuota) []any {
	var requests, limits []string
	for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
		used, hard := q.Status.Used[name], q.Status.Hard[name]
		text := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			limits = append(limits, text)
		} else {
			requests = append(requests, text)
		}
	}
	return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), api.Age(q.CreationTimestamp)}
}

// quotaWarnings returns a warning for each resource whose hard limit of requests exceeds the hard
// limit of limits.
func quotaWarnings(hard corev1.ResourceList) []string {
	var out []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage} {
		limits := "limits." + name
		limit, limited := hard[limits]
		requests := "requests." + name
		request, ok := hard[requests]
		if !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			requests = name
			request, ok = hard[name]
		}
		if ok && limited && request.Cmp(limit) > 0 {
			out = append(out, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)", requests, request.String(), limits, limit.String()))
		}
	}
	return out
}
