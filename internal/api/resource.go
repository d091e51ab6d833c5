// Package api defines the Kubernetes API that hyperkube serves. It has one subdirectory per API
// group, with one file (or directory) per kind that contains the complete definition of the kind:
// defaults, validation, update rules, selectable fields and table columns. The published Go type is
// the only type of a kind. There are no internal types, and only the few kinds that are served in
// two versions are converted.
//
// A kind is defined as a Kind of its Go type and passed to the API server as a Resource, which has
// no static type. Custom resources are Resources too.
package api

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is an API object: a runtime.Object with metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Scope specifies whether objects of a resource are in a namespace (Namespaced) or not (Cluster).
type Scope bool

// The scopes of resources.
const (
	Cluster    Scope = false
	Namespaced Scope = true
)

// Names are the names of a resource with which clients select it in discovery, paths and kubectl.
type Names struct {
	// Kind is the kind, e.g. "ConfigMap".
	Kind string
	// ListKind defaults to Kind + "List".
	ListKind string
	// Plural is the name of the resource in paths, e.g. "configmaps".
	Plural string
	// Singular defaults to the lowercase Kind.
	Singular string
	// ShortNames are the short names, e.g. "cm".
	ShortNames []string
	// Categories are the categories, e.g. "all".
	Categories []string
}

// Resource is the definition of a served resource, without a static type. It contains all
// information that the API server needs. It is created by Kind.Resource or, for custom resources,
// from their definition, and is immutable.
//
// The functions only access their arguments, are safe for concurrent use, and are not nil unless
// their comment says so. Objects named old are shared and must not be modified.
//
// Size: one field for each property of a kind, as in Kind.
type Resource struct {
	Names
	Group, Version string
	Scope          Scope
	// Verbs are the verbs that the resource itself supports: create, delete, deletecollection, get,
	// list, patch, update, watch.
	Verbs []string
	// StoragePath is the path of the objects in etcd below the prefix, without leading and trailing
	// slash, e.g. "pods", "minions", "services/specs".
	StoragePath string

	// New returns an empty object, NewList an empty list, both without type meta.
	New     func() Object
	NewList func() runtime.Object

	// Readable rejects an object from a client that was decoded but is not valid for this kind. It
	// may be nil.
	Readable func(obj Object) error
	// Default sets the defaults of objects from clients and from etcd.
	Default func(obj Object)
	// Adopt converts an object that was stored by an older server to the form of new objects, in
	// addition to Default. It may be nil.
	Adopt func(obj Object)
	// Complete sets fields that are not stored, in each object that is read. It may be nil.
	Complete func(obj Object)
	// PrepareCreate resets fields that clients cannot set on create, such as the status, and sets
	// fields such as generation 1.
	PrepareCreate func(ctx context.Context, obj Object)
	// Validate validates a new object, including its metadata.
	Validate func(ctx context.Context, obj Object) field.ErrorList
	// Canonicalize converts a valid object to the canonical form that is stored, in updates of the
	// object and its views. It may be nil.
	Canonicalize func(obj Object)
	// Warnings returns warnings for the client. old is nil on create.
	Warnings func(ctx context.Context, obj, old Object) []string

	// Update describes updates of the object itself.
	Update Update
	// AllowCreateOnUpdate allows PUT to create an object that does not exist.
	AllowCreateOnUpdate bool
	// AllowUnconditionalUpdate allows PUT without a resourceVersion.
	AllowUnconditionalUpdate bool

	// Views are the subresources that read or update a part of the object, by name: "status",
	// "ephemeralcontainers", "finalize", "approval". The API server implements actions and streams
	// (binding, eviction, token, log, exec, …).
	Views map[string]Update
	// Scale is the "scale" subresource, or nil if there is none.
	Scale *Scale

	// BeforeDelete implements graceful deletion. It can change the grace period in opts to the
	// effective one. If it returns true, the object is kept with a deletionTimestamp until its
	// owner (the kubelet for pods) deletes it with grace period 0. If it is nil, objects are
	// deleted immediately. It can also change other fields of obj, such as the phase of a
	// namespace: obj is the caller's copy, which is stored if the object is kept.
	BeforeDelete func(ctx context.Context, obj Object, opts *metav1.DeleteOptions) (graceful bool)
	// DefaultPropagation is the default propagation policy. Empty means background.
	DefaultPropagation metav1.DeletionPropagation
	// DeleteWarning is the warning for clients that rely on DefaultPropagation, or "".
	DeleteWarning string
	// Retain keeps an object that is being deleted as long as it returns true, like
	// metadata.finalizers. Namespaces also have finalizers in their spec. It may be nil.
	Retain func(obj Object) bool

	// Fields returns the selectable fields, including metadata.name and metadata.namespace.
	Fields func(obj Object) fields.Set
	// Direct contains functions for individual Fields, for selectors where computing all fields for
	// each object would be too expensive.
	Direct map[string]Direct
	// FieldNames are the field labels that selectors can use.
	FieldNames []string
	// NoField is the format of the error for other field labels, with %q or %s for the label. Empty
	// means the default message.
	NoField string
	// Columns and Row define the table that kubectl get prints. Row returns a cell for each column.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object) []any
	// RowOrder compares objects to sort table rows. If it is nil, rows have the order of the list.
	RowOrder func(a, b Object) int
	// RowConditions returns the conditions of a row, for example that its object has completed.
	// Most rows have none. It may be nil.
	RowConditions func(obj Object) []metav1.TableRowCondition

	// StoredAs is set if objects are stored as those of another Resource: events.k8s.io/v1 events
	// are core/v1 events in etcd. It may be nil.
	StoredAs *StoredAs

	// StoredJSON stores objects as JSON in etcd although their Go type supports protobuf. It is set
	// for the kinds of upstream's aggregator and extension API server.
	StoredJSON bool

	// Custom contains the properties of a custom resource; nil for built-in kinds.
	Custom *Custom

	// Review marks a resource without storage that only supports create. A handler of the API
	// server returns the response. Examples are the authentication and authorization reviews.
	Review bool
}

// StoredAs converts between the objects of a Resource and those of the Resource whose storage it
// shares. The functions return new objects that may share memory with their arguments.
type StoredAs struct {
	// GroupVersionKind identifies the stored objects. Their Resource has the same StoragePath.
	schema.GroupVersionKind
	ToStored   func(obj Object) (Object, error)
	FromStored func(obj Object) (Object, error)
}

// Update describes how an object is updated: by itself or with a subresource.
type Update struct {
	// Verbs are the verbs of the subresource: get, patch, update. Empty for the object itself.
	Verbs []string
	// Warnings returns warnings for an update of a view. For the object itself, the warnings of the
	// resource are used. It may be nil.
	Warnings func(ctx context.Context, obj, old Object) []string
	// Prepare reverts all changes in obj that this update does not allow (the status for the object
	// itself; everything except the status for "status"), and increments the generation if the spec
	// has changed.
	Prepare func(ctx context.Context, obj, old Object)
	// Validate validates the update.
	Validate func(ctx context.Context, obj, old Object) field.ErrorList
	// ResetFields are the field paths that Prepare reverts, in the format of server-side apply:
	// {"status"}, or {"metadata"}, {"spec"}. They are not recorded in managed fields.
	ResetFields [][]string
	// ApplyCreates allows server-side apply to a view to create an object that does not exist.
	ApplyCreates bool
}

// Scale maps an object to the autoscaling/v1 Scale of its "scale" subresource.
type Scale struct {
	// SpecReplicasPath is the field path of the desired replicas, e.g. {"spec", "replicas"}.
	// Managed fields of the scale subresource are mapped to it.
	SpecReplicasPath []string
	// Get returns the desired replicas, the current replicas and the selector as a string.
	Get func(obj Object) (spec, status int32, selector string)
	// Set sets the desired replicas.
	Set func(obj Object, replicas int32)
	// Check returns why an object has no scale, or nil. It may be nil.
	Check func(obj Object) error
	// Unreadable returns why Get and Set do not work for an object, or nil. It may be nil.
	Unreadable func(obj Object) error
	// Custom is set if writes are only validated as a part of the object.
	Custom bool
	// OtherPaths contains the SpecReplicasPath of other versions of the kind by API version. An
	// empty path means that the version has no scale.
	OtherPaths map[string][]string
}

// GroupVersion returns the API group and version of the resource.
func (r *Resource) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// GVK returns the API group, version and kind of the resource's objects.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// GVR returns the group, version and resource.
func (r *Resource) GVR() schema.GroupVersionResource {
	return r.GroupVersion().WithResource(r.Plural)
}

// GroupResource returns the group and resource, as used in error messages.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// Key returns the key of an object in etcd below StoragePath: "namespace/name", or "name" if the
// resource is not namespaced.
func (r *Resource) Key(namespace, name string) string {
	if r.Scope == Namespaced {
		return namespace + "/" + name
	}
	return name
}

// Direct reads a single selectable string field, so that a selector with this field does not need
// all Fields of each object. The stored, encoded object can be checked as well.
type Direct struct {
	// Of returns the value of the field.
	Of func(obj Object) string
	// Path contains the protobuf field numbers of the field in the published type, with which
	// stored objects are selected without decoding them.
	Path []int
	// Indexed enables an index for lists and watches with one value of the field. It uses memory
	// for each object.
	Indexed bool
}
