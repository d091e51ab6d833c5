package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func limitRange() api.Kind[*corev1.LimitRange] {
	check := func(l *corev1.LimitRange) field.ErrorList { return validateLimitRange(l) }
	return api.Kind[*corev1.LimitRange]{
		Names: api.Names{
			Kind:       "LimitRange",
			Plural:     "limitranges",
			ShortNames: []string{"limits"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.LimitRange { return &corev1.LimitRange{} },
		NewList: func() runtime.Object { return &corev1.LimitRangeList{} },
		Default: func(l *corev1.LimitRange) {
			for i := range l.Spec.Limits {
				defaultLimits(&l.Spec.Limits[i])
			}
		},
		PrepareCreate: func(_ context.Context, l *corev1.LimitRange) {
			if l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Validate:            func(_ context.Context, l *corev1.LimitRange) field.ErrorList { return check(l) },
		AllowCreateOnUpdate: true,
		Update: api.KindUpdate[*corev1.LimitRange]{
			AsNew: true, NewFirst: true,
			Validate: func(_ context.Context, l, _ *corev1.LimitRange) field.ErrorList { return check(l) },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
		},
		Row: func(l *corev1.LimitRange) []any {
			return []any{l.Name, l.CreationTimestamp.UTC().Format(time.RFC3339)}
		},
	}
}

// defaultLimits sets missing values of a limit range item. For containers, the default limit is set
// from the maximum, and the default request from the default limit or else from the minimum. It
// also rounds all quantities.
func defaultLimits(l *corev1.LimitRangeItem) {
	if l.Type == corev1.LimitTypeContainer {
		if l.Default == nil {
			l.Default = corev1.ResourceList{}
		}
		if l.DefaultRequest == nil {
			l.DefaultRequest = corev1.ResourceList{}
		}
		fill := func(list, from corev1.ResourceList) {
			for name, q := range from {
				if _, ok := list[name]; !ok {
					list[name] = q.DeepCopy()
				}
			}
		}
		fill(l.Default, l.Max)
		fill(l.DefaultRequest, l.Default)
		fill(l.DefaultRequest, l.Min)
	}
	for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
		validate.RoundUp(list)
	}
}

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec", "limits")
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], path.Index(i)
		limitType(e, item.Type, at.Child("type"))
		if slices.ContainsFunc(l.Spec.Limits[:i], func(o corev1.LimitRangeItem) bool { return o.Type == item.Type }) {
			e.Duplicate(at.Child("type"), item.Type)
		}
		validateLimits(e, item, at)
	}
	return e.List
}

// limitType validates the type of a limit range item: Pod, Container, PersistentVolumeClaim, or a name with a domain.
func limitType(e *validate.Errors, t corev1.LimitType, at *field.Path) {
	if msgs := validation.IsQualifiedName(string(t)); len(msgs) > 0 {
		e.InvalidAll(at, t, msgs)
		return
	}
	switch t {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return
	}
	if !strings.Contains(string(t), "/") {
		e.Invalid(at, t, "must be a standard limit type or fully qualified")
	}
}

// validateLimits validates a limit of a LimitRange. Defaults are forbidden for the type Pod, and a
// PersistentVolumeClaim requires a minimum or a maximum of storage.
func validateLimits(e *validate.Errors, l *corev1.LimitRangeItem, at *field.Path) {
	names := map[corev1.ResourceName]bool{}
	list := func(name string, list corev1.ResourceList) {
		for _, key := range slices.Sorted(maps.Keys(list)) {
			names[key] = true
			if l.Type == corev1.LimitTypePod || l.Type == corev1.LimitTypeContainer {
				validate.ContainerResourceName(e, at.Child(name).Key(string(key)), key)
			} else {
				validate.ResourceName(e, at.Child(name).Key(string(key)), key)
			}
		}
	}
	list("max", l.Max)
	list("min", l.Min)
	defaults, requests := l.Default, l.DefaultRequest
	if l.Type == corev1.LimitTypePod {
		if len(defaults) > 0 {
			e.Forbidden(at.Child("default"), "may not be specified when `type` is 'Pod'")
		}
		if len(requests) > 0 {
			e.Forbidden(at.Child("defaultRequest"), "may not be specified when `type` is 'Pod'")
		}
		defaults, requests = nil, nil
	}
	list("default", defaults)
	list("defaultRequest", requests)
	if l.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := l.Min[corev1.ResourceStorage]
		_, most := l.Max[corev1.ResourceStorage]
		if !least && !most {
			e.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided")
		}
	}
	list("maxLimitRequestRatio", l.MaxLimitRequestRatio)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		limitOrder(e, l, defaults, requests, name, at)
	}
}

// limitOrder checks that the values of the resource name in a limit range item are consistent, such
// as min <= default <= max. defaults and requests are the default limits and default requests to
// check; they are nil for items of the type Pod.
func limitOrder(e *validate.Errors, l *corev1.LimitRangeItem, defaults, requests corev1.ResourceList, name corev1.ResourceName, at *field.Path) {
	least, hasLeast := l.Min[name]
	most, hasMost := l.Max[name]
	limit, hasLimit := defaults[name]
	request, hasRequest := requests[name]
	ratio, hasRatio := l.MaxLimitRequestRatio[name]
	key := func(child string) *field.Path { return at.Child(child).Key(string(name)) }
	order := func(both bool, a, b resource.Quantity, path *field.Path, shown resource.Quantity, format string) {
		if both && a.Cmp(b) > 0 {
			e.Invalid(path, shown, fmt.Sprintf(format, a.String(), b.String()))
		}
	}
	order(hasLeast && hasMost, least, most, key("min"), least, "min value %s is greater than max value %s")
	order(hasRequest && hasLeast, least, request, key("defaultRequest"), request, "min value %s is greater than default request value %s")
	order(hasRequest && hasMost, request, most, key("defaultRequest"), request, "default request value %s is greater than max value %s")
	order(hasRequest && hasLimit, request, limit, key("defaultRequest"), request, "default request value %s is greater than default limit value %s")
	order(hasLimit && hasLeast, least, limit, key("default"), least, "min value %s is greater than default value %s")
	order(hasLimit && hasMost, limit, most, key("default"), most, "default value %s is greater than max value %s")
	if hasRatio && ratio.Cmp(*resource.NewQuantity(1, resource.DecimalSI)) < 0 {
		e.Invalid(key("maxLimitRequestRatio"), ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	if hasRatio && hasLeast && hasMost {
		if possible := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ratio.AsApproximateFloat64() > possible {
			e.Invalid(key("maxLimitRequestRatio"), ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), possible))
		}
	}
	if !validate.IsOvercommitAllowed(name) && hasLimit && hasRequest && limit.Cmp(request) != 0 {
		e.Invalid(key("defaultRequest"), request,
			fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), name))
	}
}
