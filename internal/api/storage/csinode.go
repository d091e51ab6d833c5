package storage

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// maxNodeID is the maximum size of a driver's node ID in bytes.
const maxNodeID = 256

func csiNode() api.Kind[*storagev1.CSINode] {
	return api.Kind[*storagev1.CSINode]{
		Names:                     api.Names{Kind: "CSINode", Plural: "csinodes"},
		Group:                     group,
		Version:                   version,
		Scope:                     api.Cluster,
		New:                       func() *storagev1.CSINode { return &storagev1.CSINode{} },
		NewList:                   func() runtime.Object { return &storagev1.CSINodeList{} },
		PrepareCreate:             func(_ context.Context, n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} },
		Validate:                  func(_ context.Context, n *storagev1.CSINode) field.ErrorList { return validateCSINode(n, nil) },
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*storagev1.CSINode]{
			AsNew: true, NewFirst: true,
			Prepare:     func(_ context.Context, n, old *storagev1.CSINode) { old.Status.DeepCopyInto(&n.Status) },
			Validate:    func(_ context.Context, n, old *storagev1.CSINode) field.ErrorList { return validateCSINode(n, old) },
			ResetFields: [][]string{{"status"}},
		},
		// The status only has fields of the disabled feature gate CSIVolumeHealth.
		Views: map[string]api.KindUpdate[*storagev1.CSINode]{
			"status": {
				Prepare: func(_ context.Context, n, old *storagev1.CSINode) {
					old.Spec.DeepCopyInto(&n.Spec)
					old.Status.DeepCopyInto(&n.Status)
					metav1.ResetObjectMetaForStatus(&n.ObjectMeta, &old.ObjectMeta)
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
			api.AgeColumn,
		},
		Row: func(n *storagev1.CSINode) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), api.Age(n.CreationTimestamp)}
		},
	}
}

// validateCSINode validates the drivers of a CSINode. old is the stored object, or nil for a new one. A driver can be
// added and removed, but only its allocatable count can change.
func validateCSINode(n, old *storagev1.CSINode) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "drivers")
	seen := map[string]bool{}
	for i := range n.Spec.Drivers {
		d, at := &n.Spec.Drivers[i], path.Index(i)
		errs = append(errs, validateDriverName(d.Name, at.Child("name"))...)
		if d.NodeID == "" {
			errs = append(errs, field.Required(at.Child("nodeID"), d.NodeID))
		}
		if len(d.NodeID) > maxNodeID {
			errs = append(errs, field.Invalid(at.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*d.Allocatable.Count), at.Child("allocatable", "count"))...)
		}
		if seen[d.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		seen[d.Name] = true
		keys := map[string]bool{}
		for _, key := range d.TopologyKeys {
			if key == "" {
				errs = append(errs, field.Required(at, key))
			}
			if keys[key] {
				errs = append(errs, field.Duplicate(at, key))
			}
			keys[key] = true
			for _, msg := range validation.IsQualifiedName(key) {
				errs = append(errs, field.Invalid(at, key, msg))
			}
		}
	}
	if old == nil {
		return errs
	}
	// Except for allocatable, the information of a registered driver is immutable.
	for i := range old.Spec.Drivers {
		for k := range n.Spec.Drivers {
			was, is := old.Spec.Drivers[i], n.Spec.Drivers[k]
			was.Allocatable, is.Allocatable = nil, nil
			if was.Name == is.Name && !apiequality.Semantic.DeepEqual(was, is) {
				errs = append(errs, field.Invalid(path, is, "field is immutable"))
			}
		}
	}
	return errs
}
