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
	// State identifies a state of the definition, for ETags.
	State string
	// Terminating is set while the definition is being deleted. Objects cannot be created then, and
	// discovery only lists the verbs that are needed to delete objects.
	Terminating bool
	// NotEstablished is set until the Established condition of the definition has been written. Until then,
	// discovery does not list the resource.
	NotEstablished bool
	// Deprecation is the warning for each request, or empty if the version is not deprecated.
	Deprecation string

	// Coerce applies to a decoded object what decoding to a Go type does for built-in kinds: it
	// drops fields that the schema does not contain, nulls and malformed metadata. If report is
	// set, it returns the paths of unknown fields.
	Coerce func(obj Object, report bool) (unknown []string, err error)
	// Load applies Coerce and Default to an object that was read from etcd, in any version. It
	// repairs objects that were written before validation was introduced.
	Load func(obj Object) error
	// Convert returns a new object in another version of the definition. It does not modify obj.
	Convert func(obj Object, version string) (Object, error)
	// ConvertLossless is like Convert, but keeps fields that the version does not have.
	ConvertLossless func(obj Object, version string) (Object, error)
	// StatusVersions are the versions with a status subresource. Field resets of the status
	// subresource apply to managed fields of all of them.
	StatusVersions []string
	// Remote is set if a webhook converts objects, so that results should be cached.
	Remote bool

	// Equivalents returns the mapper with which admission finds the other versions.
	Equivalents func() runtime.EquivalentResourceMapper
	// Types returns the type converter for server-side apply.
	Types func() (managedfields.TypeConverter, error)
	// Models returns the OpenAPI schemas for OpenAPI v2 or v3.
	Models func(v3 bool) (*Models, error)
}

// Models are the OpenAPI schemas of a custom resource.
type Models struct {
	// Name and ListName are the names of the schemas, e.g. "com.example.v1.Foo".
	Name, ListName string
	Object, List   json.RawMessage
}
