// Package flowcontrol defines the kinds of flowcontrol.apiserver.k8s.io/v1, one file per kind. They
// configure API priority and fairness, which shares the API server's capacity between clients.
//
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// Resources returns the definitions of the resources of the API group flowcontrol.apiserver.k8s.io, in all served
// versions. Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{flowSchema().Resource(), priorityLevel().Resource()}
}

// keepMeta reverts a status update's changes to the metadata, except those of managed fields.
func keepMeta(obj, old *metav1.ObjectMeta) {
	managed := obj.ManagedFields
	old.DeepCopyInto(obj)
	obj.ManagedFields = managed
}

// validateConditions checks that the condition types of a status are set and unique. path is the
// path of the status.
func validateConditions[T ~string](types []T, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[T]bool{}
	for i, t := range types {
		at := path.Child("conditions").Index(i).Child("type")
		if seen[t] {
			errs = append(errs, field.Duplicate(at, t))
		}
		seen[t] = true
		if t == "" {
			errs = append(errs, field.Required(at, ""))
		}
	}
	return errs
}

const version = "v1"

const group = flowcontrolv1.GroupName
