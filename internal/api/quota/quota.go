// Package quota computes which usage an object counts towards ResourceQuotas. Admission reserves this
// usage before an object is stored, and the quota controller sums it up for existing objects.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
package quota

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// List lists the objects of a resource in one namespace. The objects must not be modified.
type List func(resource schema.GroupVersionResource, namespace string) ([]runtime.Object, error)

// CoreResources returns the resources of the core group whose evaluators New creates.
func CoreResources() []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, name := range []string{"pods", "services", "persistentvolumeclaims", "configmaps", "secrets", "replicationcontrollers", "resourcequotas"} {
		out = append(out, corev1.SchemeGroupVersion.WithResource(name))
	}
	return out
}

// New creates the evaluators of the resources of CoreResources; Count creates those of other
// resources. list may be nil if only the usage of single objects is needed. now returns the current
// time.
func New(list List, now func() time.Time) quota.Registry {
	if list == nil {
		list = func(schema.GroupVersionResource, string) ([]runtime.Object, error) {
			return nil, errors.New("listing objects is not supported")
		}
	}
	var all []quota.Evaluator
	for _, gvr := range CoreResources() {
		in := func(namespace string) ([]runtime.Object, error) { return list(gvr, namespace) }
		switch gvr.Resource {
		case "pods":
			all = append(all, pods(in, now))
		case "services":
			all = append(all, services(in))
		case "persistentvolumeclaims":
			all = append(all, claims(in))
		default:
			// These resources had their own quota names before count/ names existed.
			all = append(all, generic.NewObjectCountEvaluator(gvr.GroupResource(), in, corev1.ResourceName(gvr.Resource)))
		}
	}
	return generic.NewRegistry(all)
}

// Count creates the evaluator of a resource of which only the number of objects is limited or, for
// ResourceClaims, also the number of devices. list may be nil if only the usage of single objects
// is needed.
func Count(resource schema.GroupResource, list generic.ListFuncByNamespace) quota.Evaluator {
	if resource == DeviceClaims {
		return deviceClaims(list)
	}
	return generic.NewObjectCountEvaluator(resource, list, "")
}

// Ignored reports whether quotas never apply to a resource: resources that are not stored, and
// events, because a quota must not prevent a component from recording them.
func Ignored(r schema.GroupResource) bool {
	switch r.Group {
	case "":
		return r.Resource == "bindings" || r.Resource == "componentstatuses" || r.Resource == "events"
	case "events.k8s.io":
		return r.Resource == "events"
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	}
	return false
}

// one returns the quantity 1, the usage of one object.
func one() resource.Quantity { return number(1) }

// number returns n as a quantity.
func number(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// evaluator implements quota.Evaluator, the interface of quota admission and of the quota
// controller, for one resource with functions.
type evaluator struct {
	resource schema.GroupResource
	list     generic.ListFuncByNamespace
	// handles reports whether a request can change the usage.
	handles func(admission.Attributes) bool
	// names selects the resource names that the evaluator computes.
	names func([]corev1.ResourceName) []corev1.ResourceName
	// scope reports whether an object is in a scope. If it is nil, objects are in no scope.
	scope generic.MatchesScopeFunc
	usage generic.UsageFunc
	// constraints may be nil.
	constraints func(required []corev1.ResourceName, item runtime.Object) error
}

var _ quota.Evaluator = (*evaluator)(nil)

// GroupResource implements quota.Evaluator. It returns the resource that e counts.
func (e *evaluator) GroupResource() schema.GroupResource { return e.resource }

// Handles implements quota.Evaluator. It reports whether an admitted request can change the usage.
func (e *evaluator) Handles(a admission.Attributes) bool { return e.handles(a) }

// MatchingResources implements quota.Evaluator. It returns those of the resource names that e computes.
func (e *evaluator) MatchingResources(in []corev1.ResourceName) []corev1.ResourceName {
	return e.names(in)
}

// Usage implements quota.Evaluator. It returns the usage of one object.
func (e *evaluator) Usage(item runtime.Object) (corev1.ResourceList, error) { return e.usage(item) }

// Constraints implements quota.Evaluator. It returns an error if an object lacks values that a quota requires; most
// resources have no such values.
func (e *evaluator) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	if e.constraints == nil {
		return nil
	}
	return e.constraints(required, item)
}

// inScope reports whether an object is in a scope.
func (e *evaluator) inScope(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	if e.scope == nil {
		return false, nil
	}
	return e.scope(s, item)
}

// Matches implements quota.Evaluator. It reports whether the quota q applies to an object.
func (e *evaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, e.names, e.inScope)
}

// MatchingScopes implements quota.Evaluator. It returns those of the scopes that contain an object.
func (e *evaluator) MatchingScopes(item runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	for _, s := range scopes {
		ok, err := e.inScope(s, item)
		if err != nil {
			return nil, fmt.Errorf("error on matching scope %v: %w", s, err)
		}
		if ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// UncoveredQuotaScopes implements quota.Evaluator. It returns those of the scopes limited that are not in matched, or
// none for a resource without scopes.
func (e *evaluator) UncoveredQuotaScopes(limited, matched []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	if e.scope == nil {
		return out, nil
	}
	covered := map[corev1.ResourceQuotaScope]bool{}
	for _, s := range matched {
		covered[s.ScopeName] = true
	}
	for _, s := range limited {
		if !covered[s.ScopeName] {
			out = append(out, s)
		}
	}
	return out, nil
}

// UsageStats implements quota.Evaluator. It returns the usage of all objects in a namespace and scope.
func (e *evaluator) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, e.list, e.inScope, e.usage)
}

// matchesName reports whether the selector of a scope matches one of names. If names is empty, only NotIn and
// DoesNotExist match. It returns an error for an invalid operator.
func matchesName(s corev1.ScopedResourceSelectorRequirement, names []string) (bool, error) {
	var op selection.Operator
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		op = selection.In
	case corev1.ScopeSelectorOpNotIn:
		op = selection.NotIn
	case corev1.ScopeSelectorOpExists:
		op = selection.Exists
	case corev1.ScopeSelectorOpDoesNotExist:
		op = selection.DoesNotExist
	default:
		return false, fmt.Errorf("failed to parse and convert selector: %q is not a valid scope selector operator", s.Operator)
	}
	r, err := labels.NewRequirement(string(s.ScopeName), op, s.Values)
	if err != nil {
		return false, fmt.Errorf("failed to parse and convert selector: %w", err)
	}
	if len(names) == 0 {
		return r.Matches(labels.Set{}), nil
	}
	for _, n := range names {
		if r.Matches(labels.Set{string(s.ScopeName): n}) {
			return true, nil
		}
	}
	return false, nil
}
