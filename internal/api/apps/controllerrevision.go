package apps

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func controllerRevision() api.Kind[*appsv1.ControllerRevision] {
	return api.Kind[*appsv1.ControllerRevision]{
		Names:   api.Names{Kind: "ControllerRevision", Plural: "controllerrevisions"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *appsv1.ControllerRevision { return &appsv1.ControllerRevision{} },
		NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		Validate: func(_ context.Context, r *appsv1.ControllerRevision) field.ErrorList {
			return append(validateControllerRevision(r), validateRevisionData(&r.Data)...)
		},
		Update: api.KindUpdate[*appsv1.ControllerRevision]{
			AsNew: true,
			Validate: func(_ context.Context, r, old *appsv1.ControllerRevision) field.ErrorList {
				return append(validateControllerRevision(r), apivalidation.ValidateImmutableField(r.Data, old.Data, field.NewPath("data"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Controller", "string", "Controller of the object"),
			api.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
			api.AgeColumn,
		},
		Row: func(r *appsv1.ControllerRevision) []any {
			owner := "<none>"
			if ref := metav1.GetControllerOf(r); ref != nil {
				gv, err := schema.ParseGroupVersion(ref.APIVersion)
				if err == nil {
					kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
					owner = lower(kind) + "/" + ref.Name
				}
			}
			return []any{r.Name, owner, r.Revision, api.Age(r.CreationTimestamp)}
		},
	}
}

func validateControllerRevision(r *appsv1.ControllerRevision) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(r.Revision, field.NewPath("revision"))
}

// validateRevisionData checks that the data of a new ControllerRevision, which contains a
// controller's former spec, is a JSON object.
func validateRevisionData(data *runtime.RawExtension) field.ErrorList {
	at := field.NewPath("data")
	var v any
	if data.Object != nil {
		return nil
	}
	if data.Raw == nil {
		return field.ErrorList{field.Required(at, "data is mandatory")}
	}
	if err := json.Unmarshal(data.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(at, "data is mandatory")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Required(at, "data must be a valid JSON object")}
	}
	return nil
}
