package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// maxNodeID is how long a driver's name of a node may be, in bytes.
const maxNodeID = 256

func csiNode() api.Kind[*storagev1.CSINode] {
	return api.Kind[*storagev1.CSINode]{
		Names:    api.Names{Kind: "CSINode", Plural: "csinodes"},
		Group:    group,
		Version:  version,
		Scope:    api.Cluster,
		New:      func() *storagev1.CSINode { return &storagev1.CSINode{} },
		NewList:  func() runtime.Object { return &storagev1.CSINodeList{} },
		Validate: func(_ context.Context, n *storagev1.CSINode) field.ErrorList { return validateCSINode(n, nil) },
		Update: api.KindUpdate[*storagev1.CSINode]{
			Validate: func(_ context.Context, n, old *storagev1.CSINode) field.ErrorList { return validateCSINode(n, old) },
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

func validateCSINode(n, old *storagev1.CSINode) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "drivers")
	seen := map[string]bool{}
	for i := range n.Spec.Drivers {
		d, at := &n.Spec.Drivers[i], path.Index(i)
		if seen[d.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		seen[d.Name] = true
		errs = append(errs, validateDriverName(d.Name, at.Child("name"))...)
		switch {
		case d.NodeID == "":
			errs = append(errs, field.Required(at.Child("nodeID"), d.NodeID))
		case len(d.NodeID) > maxNodeID:
			errs = append(errs, field.Invalid(at.Child("nodeID"), d.NodeID, "nodeID length is too long"))
		}
		if d.Allocatable != nil && d.Allocatable.Count != nil && *d.Allocatable.Count < 0 {
			errs = append(errs, field.Invalid(at.Child("allocatable", "count"), *d.Allocatable.Count, "must be greater than or equal to 0"))
		}
		keys := map[string]bool{}
		for _, key := range d.TopologyKeys {
			at := at.Child("topologyKeys")
			if key == "" || keys[key] {
				if key == "" {
					errs = append(errs, field.Required(at, ""))
				} else {
					errs = append(errs, field.Duplicate(at, key))
				}
				continue
			}
			keys[key] = true
			for _, msg := range validation.IsQualifiedName(key) {
				errs = append(errs, field.Invalid(at, d.TopologyKeys, msg))
			}
		}
	}
	if old == nil {
		return errs
	}
	// A driver that registers anew may change how much it takes, no more.
	for i := range old.Spec.Drivers {
		for k := range n.Spec.Drivers {
			was, is := old.Spec.Drivers[i], n.Spec.Drivers[k]
			was.Allocatable = is.Allocatable
			if was.Name == is.Name && !apiequality.Semantic.DeepEqual(was, is) {
				errs = append(errs, field.Invalid(path, is, "field is immutable"))
			}
		}
	}
	return errs
}
