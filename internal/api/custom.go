package api

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// Custom contains the additional properties of a Resource that is created from a
// CustomResourceDefinition. Its objects are *unstructured.Unstructured. All versions of a
// definition share one collection, in which each object has the version in which it was stored.
// StoredAs converts between versions.
type Custom struct {
	// State changes whenever the definition changes. It is a part of the ETags of OpenAPI documents.
	State string
	// Terminating is set while the definition is being deleted. Objects cannot be created then, and
	// discovery only lists the verbs that are needed to delete objects.
	Terminating bool
	// NotEstablished is set until the Established condition of the definition has been written. Until then,
	// discovery does not list the resource.
	NotEstablished bool
	// Deprecation is the warning in the response to each request for this version, or empty if the
	// version is not deprecated.
	Deprecation string

	// Coerce applies to a decoded object what decoding to a Go type does for built-in kinds: it
	// drops fields that the schema does not contain, nulls and malformed metadata. If report is
	// set, it returns the paths of unknown fields.
	Coerce func(obj Object, report bool) (unknown []string, err error)
	// Load applies Coerce and Default to an object that was read from etcd, in any version. It
	// repairs objects that were written before validation was introduced.
	Load func(obj Object) error
	// Convert returns a copy of obj, converted to another version of the definition and without the
	// fields that this version does not have. It does not modify obj.
	Convert func(obj Object, version string) (Object, error)
	// ConvertLossless is like Convert, but keeps fields that the version does not have.
	ConvertLossless func(obj Object, version string) (Object, error)
	// StatusVersions are the versions with a status subresource. Field resets of the status
	// subresource apply to managed fields of all of them.
	StatusVersions []string
	// AtomicMaps reports whether the schema contains a map that has one owner as a whole
	// (x-kubernetes-map-type: atomic), so that its keys have no managed fields.
	AtomicMaps func() bool
	// Remote is set if a webhook converts objects, so that results should be cached.
	Remote bool

	// Equivalents returns the mapper from a resource to the other versions of its definition.
	// Admission webhooks and policies with matchPolicy Equivalent use it.
	Equivalents func() runtime.EquivalentResourceMapper
	// Types returns the type converter with which server-side apply merges objects according to
	// their schema.
	Types func() (managedfields.TypeConverter, error)
	// Models returns the schemas that the server publishes in its OpenAPI v3 document or, if v3 is
	// false, in its OpenAPI v2 document.
	Models func(v3 bool) (*Models, error)
}

// Models are the OpenAPI schemas of the objects and lists of a custom resource, with their names.
type Models struct {
	// Name and ListName are the names of the schemas, e.g. "com.example.v1.Foo".
	Name, ListName string
	Object, List   json.RawMessage
}
