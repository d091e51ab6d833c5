// Package quota measures what objects use of a ResourceQuota: for admission,
// which reserves it before an object is stored, and for the controller, which
// counts what is there.
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

// List lists a resource's objects in one namespace. They are not written to.
type List func(resource schema.GroupVersionResource, namespace string) ([]runtime.Object, error)

// Counted are the resources of the core group that evaluators of New list.
func Counted() []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, name := range []string{"pods", "services", "persistentvolumeclaims", "configmaps", "secrets", "replicationcontrollers", "resourcequotas"} {
		out = append(out, corev1.SchemeGroupVersion.WithResource(name))
	}
	return out
}

// New makes the evaluators of the resources of Counted. List may be nil where
// only single objects are measured. Now tells the time.
func New(list List, now func() time.Time) quota.Registry {
	if list == nil {
		list = func(schema.GroupVersionResource, string) ([]runtime.Object, error) {
			return nil, errors.New("nothing is listed here")
		}
	}
	var all []quota.Evaluator
	for _, gvr := range Counted() {
		in := func(namespace string) ([]runtime.Object, error) { return list(gvr, namespace) }
		switch gvr.Resource {
		case "pods":
			all = append(all, pods(in, now))
		case "services":
			all = append(all, services(in))
		case "persistentvolumeclaims":
			all = append(all, claims(in))
		default:
			// These have a name of their own from before there was count/.
			all = append(all, generic.NewObjectCountEvaluator(gvr.GroupResource(), in, corev1.ResourceName(gvr.Resource)))
		}
	}
	return generic.NewRegistry(all)
}

// Count makes the evaluator of a resource of which only the number is limited
// or, for claims of devices, that of their devices too. List may be nil where
// only single objects are measured.
func Count(resource schema.GroupResource, list generic.ListFuncByNamespace) quota.Evaluator {
	if resource == DeviceClaims {
		return deviceClaims(list)
	}
	return generic.NewObjectCountEvaluator(resource, list, "")
}

// Ignored tells whether a resource is never limited: what is not stored, and
// events, which nobody should lack.
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

// one is the quantity of a single object.
func one() resource.Quantity { return number(1) }

func number(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// evaluator is quota.Evaluator by functions.
type evaluator struct {
	resource schema.GroupResource
	list     generic.ListFuncByNamespace
	// handles tells whether a request may change usage.
	handles func(admission.Attributes) bool
	// names picks what this evaluator measures.
	names func([]corev1.ResourceName) []corev1.ResourceName
	// scope tells whether an object is in a scope. Nil: it is in none.
	scope generic.MatchesScopeFunc
	usage generic.UsageFunc
	// constraints may be nil.
	constraints func(required []corev1.ResourceName, item runtime.Object) error
}

var _ quota.Evaluator = (*evaluator)(nil)

func (e *evaluator) GroupResource() schema.GroupResource { return e.resource }

func (e *evaluator) Handles(a admission.Attributes) bool { return e.handles(a) }

func (e *evaluator) MatchingResources(in []corev1.ResourceName) []corev1.ResourceName {
	return e.names(in)
}

func (e *evaluator) Usage(item runtime.Object) (corev1.ResourceList, error) { return e.usage(item) }

func (e *evaluator) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	if e.constraints == nil {
		return nil
	}
	return e.constraints(required, item)
}

func (e *evaluator) inScope(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	if e.scope == nil {
		return false, nil
	}
	return e.scope(s, item)
}

func (e *evaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, e.names, e.inScope)
}

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

func (e *evaluator) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, e.list, e.inScope, e.usage)
}

// matchesName tells whether a scope's selector picks one of names; none at all
// is what only NotIn and DoesNotExist pick.
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
