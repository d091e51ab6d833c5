package storagemigration

import (
	"context"
	"fmt"
	"strconv"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func migration() api.Kind[*storagemigrationv1.StorageVersionMigration] {
	// Upstream's has no format here, unlike every other kind's.
	name := api.NameColumn
	name.Format = ""
	return api.Kind[*storagemigrationv1.StorageVersionMigration]{
		Names:   api.Names{Kind: "StorageVersionMigration", Plural: "storageversionmigrations"},
		Group:   storagemigrationv1.GroupName,
		Version: "v1",
		Scope:   api.Cluster,
		New: func() *storagemigrationv1.StorageVersionMigration {
			return &storagemigrationv1.StorageVersionMigration{}
		},
		NewList: func() runtime.Object { return &storagemigrationv1.StorageVersionMigrationList{} },

		PrepareCreate: func(_ context.Context, m *storagemigrationv1.StorageVersionMigration) {
			m.Status = storagemigrationv1.StorageVersionMigrationStatus{}
		},
		Validate: func(_ context.Context, m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
			return checkMigration(m)
		},
		Update: api.KindUpdate[*storagemigrationv1.StorageVersionMigration]{
			Prepare: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) {
				old.Status.DeepCopyInto(&m.Status)
			},
			Validate: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
				errs := checkMigration(m)
				errs = append(errs, apivalidation.ValidateImmutableField(m.Spec.Resource.Group, old.Spec.Resource.Group, field.NewPath("group"))...)
				return append(errs, apivalidation.ValidateImmutableField(m.Spec.Resource.Resource, old.Spec.Resource.Resource, field.NewPath("resource"))...)
			},
			ResetFields: [][]string{{"status"}},
		},
		ForbidUnconditionalUpdate: true,
		Views: map[string]api.KindUpdate[*storagemigrationv1.StorageVersionMigration]{
			"status": {
				Prepare: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) {
					old.Spec.DeepCopyInto(&m.Spec)
					metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
				},
				Validate: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
					return checkStatus(m, old)
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{name, api.Column("Resource", "string", "Fully qualified resource to migrate")},
		Row: func(m *storagemigrationv1.StorageVersionMigration) []any {
			return []any{m.Name, m.Spec.Resource.String()}
		},
	}
}

func checkMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var e validate.Errors
	if m.Spec.Resource.Resource == "" {
		e.Required(field.NewPath("spec", "resource", "resource"), "resource is required")
	}
	return e.List
}

func checkStatus(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var e validate.Errors
	version := field.NewPath("status", "resourceVersion")
	conditions := field.NewPath("status", "conditions")
	n, err := revision(m.Status.ResourceVersion)
	if err != nil {
		e.Invalid(version, m.Status.ResourceVersion, err.Error())
	}
	e.Add(apivalidation.ValidateNonnegativeField(n, version))
	e.Add(metavalidation.ValidateConditions(m.Status.Conditions, conditions))
	if was := old.Status.ResourceVersion; was != "" && was != m.Status.ResourceVersion {
		e.Invalid(version, m.Status.ResourceVersion, "cannot be updated")
	}
	is := func(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	succeeded, failed, running := is(m, storagemigrationv1.MigrationSucceeded), is(m, storagemigrationv1.MigrationFailed), is(m, storagemigrationv1.MigrationRunning)
	for _, rule := range []struct {
		broken bool
		detail string
	}{
		{succeeded && failed, "Both success and failed conditions cannot be true at the same time"},
		{succeeded && running, "Running condition cannot be true when success condition is true"},
		{failed && running, "Running condition cannot be true when failed condition is true"},
		{is(old, storagemigrationv1.MigrationSucceeded) && !succeeded, "Success condition cannot be set to false once it is true"},
		{is(old, storagemigrationv1.MigrationFailed) && !failed, "Failed condition cannot be set to false once it is true"},
	} {
		if rule.broken {
			e.Invalid(conditions, m.Status.Conditions, rule.detail)
		}
	}
	return e.List
}

// revision reads a resource version; an empty one is none yet.
func revision(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("failed to parse resource version %q: %w", s, err)
	}
	return n, nil
}
