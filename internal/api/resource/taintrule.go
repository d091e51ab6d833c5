package resource

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func deviceTaintRule() api.Kind[*resourcev1.DeviceTaintRule] {
	taint := resourcev1.DeviceTaint{}.SwaggerDoc()
	return api.Kind[*resourcev1.DeviceTaintRule]{
		Names:   api.Names{Kind: "DeviceTaintRule", Plural: "devicetaintrules"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,

		ForbidUnconditionalUpdate: true,

		New:     func() *resourcev1.DeviceTaintRule { return &resourcev1.DeviceTaintRule{} },
		NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },

		Default: func(r *resourcev1.DeviceTaintRule) { defaultTaint(&r.Spec.Taint) },
		PrepareCreate: func(_ context.Context, r *resourcev1.DeviceTaintRule) {
			r.Status = resourcev1.DeviceTaintRuleStatus{}
			r.Generation = 1
		},
		Validate: func(ctx context.Context, r *resourcev1.DeviceTaintRule) field.ErrorList {
			return checkTaintRule(ctx, r, nil)
		},
		Update: api.KindUpdate[*resourcev1.DeviceTaintRule]{
			Prepare: func(_ context.Context, r, old *resourcev1.DeviceTaintRule) {
				old.Status.DeepCopyInto(&r.Status)
				is, was := &r.Spec.Taint, &old.Spec.Taint
				if is.Effect != was.Effect && is.TimeAdded.Equal(was.TimeAdded) {
					is.TimeAdded = now()
				}
				r.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
					r.Generation++
				}
			},
			Validate:    checkTaintRule,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*resourcev1.DeviceTaintRule]{
			"status": {
				Prepare: func(_ context.Context, r, old *resourcev1.DeviceTaintRule) {
					old.Spec.DeepCopyInto(&r.Spec)
					metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
				},
				Validate: func(ctx context.Context, r, old *resourcev1.DeviceTaintRule) field.ErrorList {
					var e validate.Errors
					at := field.NewPath("status", "conditions")
					e.Add(validate.Conditions(r.Status.Conditions, at))
					if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
						e.Add(field.ErrorList{field.TooMany(at, n, resourcev1.DeviceTaintRuleStatusMaxConditions)})
					}
					e.Add(declared(ctx, resourcev1.Validate_DeviceTaintRuleStatus, field.NewPath("status"), &r.Status, &old.Status))
					return e.List
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Key", "string", taint["key"]),
			api.Column("Value", "string", taint["value"]),
			api.Column("Effect", "string", taint["effect"]),
			api.Column("TimeAdded", "string", taint["timeAdded"]),
			api.AgeColumn,
		},
		Row: func(r *resourcev1.DeviceTaintRule) []any {
			t, added := &r.Spec.Taint, ""
			if t.TimeAdded != nil {
				added = api.Age(*t.TimeAdded)
			}
			return []any{r.Name, t.Key, t.Value, string(t.Effect), added, api.Age(r.CreationTimestamp)}
		},
	}
}

// now returns the current time without fractions of a second, which the API does not store.
func now() *metav1.Time { return &metav1.Time{Time: time.Now().Truncate(time.Second)} }

// defaultTaint sets the time at which a taint was added to now if it is missing.
func defaultTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = now()
	}
}

func checkTaintRule(ctx context.Context, r, old *resourcev1.DeviceTaintRule) field.ErrorList {
	var e validate.Errors
	spec := field.NewPath("spec")
	if s := r.Spec.DeviceSelector; s != nil {
		at := spec.Child("deviceSelector")
		if s.Driver != nil {
			checkDriver(&e, *s.Driver, at.Child("driver"))
		}
		if s.Pool != nil {
			checkPool(&e, *s.Pool, at.Child("pool"))
		}
		if s.Device != nil {
			e.Label(at.Child("device"), *s.Device)
		}
	}
	checkTaint(&e, &r.Spec.Taint, spec.Child("taint"))
	var was *resourcev1.DeviceTaintRuleSpec
	if old != nil {
		was = &old.Spec
	}
	e.Add(declared(ctx, resourcev1.Validate_DeviceTaintRuleSpec, spec, &r.Spec, was))
	return e.List
}
