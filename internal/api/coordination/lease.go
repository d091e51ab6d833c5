package coordination

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func lease() api.Kind[*coordinationv1.Lease] {
	return api.Kind[*coordinationv1.Lease]{
		Names:   api.Names{Kind: "Lease", Plural: "leases"},
		Group:   coordinationv1.GroupName,
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },

		AnyFinalizers:             true,
		AllowCreateOnUpdate:       true,
		ForbidUnconditionalUpdate: true,
		// The feature gate CoordinatedLeaderElection is disabled.
		PrepareCreate: func(_ context.Context, l *coordinationv1.Lease) {
			l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
		},
		Validate: func(_ context.Context, l *coordinationv1.Lease) field.ErrorList {
			return validateLeaseSpec(&l.Spec, field.NewPath("spec"))
		},
		Update: api.KindUpdate[*coordinationv1.Lease]{
			Prepare: func(_ context.Context, l, old *coordinationv1.Lease) {
				if old.Spec.Strategy == nil {
					l.Spec.Strategy = nil
				}
				if old.Spec.PreferredHolder == nil {
					l.Spec.PreferredHolder = nil
				}
			},
			Validate: func(_ context.Context, l, _ *coordinationv1.Lease) field.ErrorList {
				return validateLeaseSpec(&l.Spec, field.NewPath("spec"))
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
			api.AgeColumn,
		},
		Row: func(l *coordinationv1.Lease) []any {
			holder := ""
			if l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return []any{l.Name, holder, api.Age(l.CreationTimestamp)}
		},
	}
}

func validateLeaseSpec(spec *coordinationv1.LeaseSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.LeaseDurationSeconds != nil && *spec.LeaseDurationSeconds <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *spec.LeaseDurationSeconds, "must be greater than 0"))
	}
	if spec.LeaseTransitions != nil && *spec.LeaseTransitions < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *spec.LeaseTransitions, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		errs = append(errs, validateStrategy(*spec.Strategy, path.Child("strategy"))...)
	}
	if spec.PreferredHolder != nil && *spec.PreferredHolder != "" && (spec.Strategy == nil || *spec.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

// validateStrategy validates the name of a strategy for coordinated leader election: one of
// Kubernetes, or a name with a domain.
func validateStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	path = path.Child("strategy") // duplicated as in upstream
	if !strings.Contains(string(strategy), "/") {
		if strategy != coordinationv1.OldestEmulationVersion {
			errs = append(errs, field.NotSupported(path, strategy, []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}))
		}
		return errs
	}
	for _, msg := range validation.IsQualifiedName(string(strategy)) {
		errs = append(errs, field.Invalid(path, strategy, msg))
	}
	return errs
}
