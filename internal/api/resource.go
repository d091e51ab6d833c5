// Package api describes the Kubernetes API that hyperkube serves. There is one
// folder below it for each API group and in it one file (or folder) for each
// kind, which says all there is to know of that kind: defaults, validation,
// what an update may change, selectable fields, columns. The published Go type
// is the only type: nothing is converted, but for the few kinds that are
// served in two versions.
//
// A kind is written as a Kind of its Go type and handed to the API server as a
// Resource, in which the type is erased. Custom resources become Resources
// too.
package api

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is an API object: it can be encoded and has metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Scope tells whether objects of a resource live in namespaces.
type Scope bool

// The two scopes.
const (
	Cluster    Scope = false
	Namespaced Scope = true
)

// Names are what a resource is called.
type Names struct {
	// Kind, e.g. "ConfigMap".
	Kind string
	// ListKind is Kind + "List" when empty.
	ListKind string
	// Plural is the resource's name in paths, e.g. "configmaps".
	Plural string
	// Singular is the lower-case Kind when empty.
	Singular string
	// ShortNames, e.g. "cm".
	ShortNames []string
	// Categories, e.g. "all".
	Categories []string
}

// Resource is one served resource with its type erased, all that the API
// server knows of it. It is made by Kind.Resource, or for custom resources
// from their definition, and is not changed afterwards. The functions are
// pure: they touch nothing but the objects they are given, may be called by
// several goroutines at once, and none of them is nil unless its comment says
// so. Objects named old are shared and must not be written to.
type Resource struct {
	Names
	Group, Version string
	Scope          Scope
	// Verbs that the resource itself serves, of: create delete
	// deletecollection get list patch update watch.
	Verbs []string
	// StoragePath is where objects are in etcd below the prefix, without
	// slashes around it, e.g. "pods", "minions", "services/specs".
	StoragePath string

	// New makes an empty object, NewList an empty list, both without type
	// meta.
	New     func() Object
	NewList func() runtime.Object

	// Readable, unless nil, refuses what a client sends that cannot be read as
	// this kind, though it can be decoded.
	Readable func(obj Object) error
	// Default fills what is unset. It runs on what clients send and on what
	// is read from etcd.
	Default func(obj Object)
	// Adopt makes of what an older server has stored what a new one would have, beyond
	// what Default does for clients' objects too. It may be nil.
	Adopt func(obj Object)
	// Complete fills what the stored form has no place for, in every object that
	// is read. It may be nil.
	Complete func(obj Object)
	// PrepareCreate resets what a client may not set on a new object, such
	// as its status, and sets what the server sets, such as generation 1.
	PrepareCreate func(ctx context.Context, obj Object)
	// Validate checks a new object, metadata included.
	Validate func(ctx context.Context, obj Object) field.ErrorList
	// Canonicalize, unless nil, brings what was found valid into the one form
	// that is stored, at the object's own path and its views.
	Canonicalize func(obj Object)
	// Warnings are told to the client; old is nil on create.
	Warnings func(ctx context.Context, obj, old Object) []string

	// Update is how an object is changed at its own path.
	Update Update
	// AllowCreateOnUpdate: PUT of an object that does not exist creates it.
	AllowCreateOnUpdate bool
	// AllowUnconditionalUpdate: PUT without a resourceVersion is allowed.
	AllowUnconditionalUpdate bool

	// Views are the subresources that show or change a part of the object,
	// by name: "status", "ephemeralcontainers", "finalize", "approval".
	// Actions and streams (binding, eviction, token, log, exec, …) are the
	// API server's own.
	Views map[string]Update
	// Scale is the "scale" subresource; nil if there is none.
	Scale *Scale

	// BeforeDelete decides on graceful deletion. It may set the grace period
	// in opts to what applies to the object. It returns true when the object
	// shall stay with a deletionTimestamp until its owner (for pods the
	// kubelet) deletes it with grace 0. Nil: deletion is immediate. It may
	// change what else of obj tells of the deletion (a namespace's phase),
	// so obj is the caller's own copy; that is stored when the object stays.
	BeforeDelete func(ctx context.Context, obj Object, opts *metav1.DeleteOptions) (graceful bool)
	// DefaultPropagation is what applies when a deletion names no policy;
	// empty means background.
	DefaultPropagation metav1.DeletionPropagation
	// DeleteWarning is told to whom relies on it; "" for nothing.
	DeleteWarning string
	// Retain, unless nil, keeps an object whose deletion is under way for as
	// long as it returns true, as metadata.finalizers do: namespaces have
	// finalizers in their spec too.
	Retain func(obj Object) bool

	// Fields returns the selectable fields, metadata.name and
	// metadata.namespace included.
	Fields func(obj Object) fields.Set
	// Direct has single fields of those of Fields, where making all of them
	// for each object would cost too much. Others are not in it.
	Direct map[string]Direct
	// FieldNames are the labels that field selectors may use.
	FieldNames []string
	// NoField is what is said of other labels, with %q or %s for the label;
	// empty means what most kinds say.
	NoField string
	// Columns and Row make tables: a cell a column, in order.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object) []any
	// RowOrder, unless nil, compares objects by where their rows are in a
	// table; others are in the order of a list.
	RowOrder func(a, b Object) int
	// RowConditions, unless nil, tells what is to be known of a row, such as
	// that its object has ended; most rows have none.
	RowConditions func(obj Object) []metav1.TableRowCondition

	// StoredAs, unless nil, tells that objects are stored as those of another
	// Resource: events.k8s.io/v1 events are core/v1 events in etcd.
	StoredAs *StoredAs

	// StoredJSON keeps objects as JSON in etcd although their Go type has a
	// protobuf form: the kinds that upstream's aggregator and extension
	// server own.
	StoredJSON bool

	// Custom is what a custom resource has besides; nil for built-in kinds.
	Custom *Custom

	// Review, when set, makes this a resource without storage that only
	// serves create: it is answered by the API server's handler of that
	// name. Such are the authentication and authorization reviews.
	Review bool
}

// StoredAs converts between the objects of a Resource and those of the one
// whose storage it shares. The functions return new objects that may share
// parts with what they were given.
type StoredAs struct {
	// Kind and GroupVersion of the stored objects; their Resource has the
	// same StoragePath.
	schema.GroupVersionKind
	ToStored   func(obj Object) (Object, error)
	FromStored func(obj Object) (Object, error)
}

// Update is one way to change an object: at its own path or through a
// subresource that is a view of it.
type Update struct {
	// Verbs of the subresource, of: get patch update. Empty for the
	// object's own path.
	Verbs []string
	// Warnings, unless nil, are told to a client that changes a view. At the
	// object's own path those of the resource are.
	Warnings func(ctx context.Context, obj, old Object) []string
	// Prepare takes back from obj every change that this way does not
	// allow (status at the object's own path; all but status at "status"),
	// and bumps the generation when the specification changed.
	Prepare func(ctx context.Context, obj, old Object)
	// Validate checks the change.
	Validate func(ctx context.Context, obj, old Object) field.ErrorList
	// ResetFields are the paths that Prepare takes back, in the form of
	// server-side apply: {"status"}, or {"metadata"}, {"spec"}; managed
	// fields are not recorded for them.
	ResetFields [][]string
	// ApplyCreates: to apply to a view makes an object that does not exist.
	ApplyCreates bool
}

// Scale maps an object to the autoscaling/v1 Scale of its "scale"
// subresource.
type Scale struct {
	// SpecReplicasPath is where the wish is, e.g. {"spec", "replicas"}; the
	// managed fields of the scale subresource are mapped by it.
	SpecReplicasPath []string
	// Get returns the wish, the status and the selector, as a string.
	Get func(obj Object) (spec, status int32, selector string)
	// Set writes the wish.
	Set func(obj Object, replicas int32)
	// Check, unless nil, tells why an object has no scale to show.
	Check func(obj Object) error
	// Unreadable, unless nil, tells why Get and Set do not work on an object.
	Unreadable func(obj Object) error
	// Custom: what is written is checked as part of the object alone.
	Custom bool
	// OtherPaths are the SpecReplicasPath of other versions of the kind, by
	// API version; an empty one has no scale.
	OtherPaths map[string][]string
}

// GroupVersion of the resource.
func (r *Resource) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// GVK of an object.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// GVR of the resource.
func (r *Resource) GVR() schema.GroupVersionResource {
	return r.GroupVersion().WithResource(r.Plural)
}

// GroupResource of the resource, as error messages name it.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// Key is the object's key below StoragePath: "namespace/name" or "name".
func (r *Resource) Key(namespace, name string) string {
	if r.Scope == Namespaced {
		return namespace + "/" + name
	}
	return name
}

// Direct is a field that is selected by often, a string.
type Direct struct {
	// Of returns it.
	Of func(obj Object) string
	// Path are the numbers of the protobuf fields that lead to it in the
	// published type: stored objects are selected by it without being decoded.
	Path []int
	// Indexed: lists and watches that ask for one value find their objects
	// without looking at the others. It costs memory for each object.
	Indexed bool
}
