package storagemigration

import (
	"context"
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func migration() api.Kind[*storagemigrationv1.StorageVersionMigration] {
	// In upstream, this kind has no format here, unlike all others.
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
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) {
				old.Status.DeepCopyInto(&m.Status)
			},
			Validate: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
				return append(checkMigration(m), apivalidation.ValidateImmutableField(m.Spec, old.Spec, field.NewPath("spec"))...)
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
		Columns: []metav1.TableColumnDefinition{
			name,
			api.Column("Resource", "string", "GroupResource to migrate"),
			api.Column("Status", "string", "Status of the migration"),
		},
		Row: func(m *storagemigrationv1.StorageVersionMigration) []any {
			return []any{m.Name, m.Spec.Resource.String(), state(m)}
		},
	}
}

// state returns the table cell of a migration's status: the type of the last migration condition
// that is true, or "Unknown".
func state(m *storagemigrationv1.StorageVersionMigration) string {
	out := "Unknown"
	for _, c := range m.Status.Conditions {
		switch t := storagemigrationv1.MigrationConditionType(c.Type); t {
		case storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded:
			if c.Status == metav1.ConditionTrue {
				out = c.Type
			}
		}
	}
	return out
}

func checkMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var e validate.Errors
	path := field.NewPath("spec", "resource")
	if name := m.Spec.Resource.Resource; name == "" {
		e.Required(path.Child("resource"), "resource is required to be set")
	} else if msgs := validation.IsDNS1035Label(name); len(msgs) > 0 {
		e.Invalid(path.Child("resource"), name, strings.Join(msgs, ","))
	}
	if group := m.Spec.Resource.Group; group != "" {
		if msgs := validation.IsDNS1123Subdomain(group); len(msgs) > 0 {
			e.Invalid(path.Child("group"), group, strings.Join(msgs, ","))
		}
	}
	return e.List
}

// checkStatus validates an update of the status. The resource version must not change after it has been set. The
// conditions Succeeded and Failed exclude each other and remain True.
func checkStatus(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var e validate.Errors
	version := field.NewPath("status", "resourceVersion")
	conditions := field.NewPath("status", "conditions")
	if given := m.Status.ResourceVersion; given != "" {
		if _, err := resourceversion.CompareResourceVersion(given, given); err != nil {
			e.Invalid(version, given, err.Error())
		}
	}
	e.Add(validate.Conditions(m.Status.Conditions, conditions))
	if was := old.Status.ResourceVersion; was != "" && was != m.Status.ResourceVersion {
		e.Invalid(version, m.Status.ResourceVersion, "field is immutable")
	}
	is := func(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	succeeded, failed := is(m, storagemigrationv1.MigrationSucceeded), is(m, storagemigrationv1.MigrationFailed)
	for _, rule := range []struct {
		broken bool
		detail string
	}{
		{succeeded && failed, "Both success and failed conditions cannot be true at the same time"},
		{is(old, storagemigrationv1.MigrationSucceeded) && !succeeded, "Success condition cannot be set to false once it is true"},
		{is(old, storagemigrationv1.MigrationFailed) && !failed, "Failed condition cannot be set to false once it is true"},
	} {
		if rule.broken {
			e.Invalid(conditions, m.Status.Conditions, rule.detail)
		}
	}
	return e.List
}
