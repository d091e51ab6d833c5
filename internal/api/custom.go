package api

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// Custom is what a Resource has besides that is made from a
// CustomResourceDefinition. Its objects are *unstructured.Unstructured. All
// versions of a definition have one collection, in which each object is of
// the version that it was stored in; StoredAs converts.
type Custom struct {
	// State tells states of the definition apart, for ETags.
	State string
	// Terminating: the definition is being deleted, so nothing new may be
	// created and discovery shows what helps to delete the rest.
	Terminating bool
	// Early: that the definition is served has not been written yet, so discovery
	// does not tell of it.
	Early bool
	// Deprecation, unless empty, is the warning for every request.
	Deprecation string

	// Coerce does to an object that was decoded what decoding into a Go type
	// does to others: fields that the schema does not have are taken away,
	// and so are nulls and malformed metadata. With report the paths of
	// unknown fields are returned.
	Coerce func(obj Object, report bool) (unknown []string, err error)
	// Load is Coerce and Default for what was read from etcd, in whatever
	// version; it repairs what was written before there were checks.
	Load func(obj Object) error
	// Convert returns a new object of another version of the definition;
	// obj is not changed.
	Convert func(obj Object, version string) (Object, error)
	// Relabel is Convert, but for leaving in what the version does not know.
	Relabel func(obj Object, version string) (Object, error)
	// StatusVersions are the versions that have a status subresource: what it
	// takes back is taken back whatever version it was recorded in.
	StatusVersions []string
	// Remote: a webhook converts, so that the outcome is worth keeping.
	Remote bool

	// Equivalents tells admission of the other versions.
	Equivalents func() runtime.EquivalentResourceMapper
	// Types is the schema for server-side apply.
	Types func() (managedfields.TypeConverter, error)
	// Models returns the OpenAPI schemas, v2 or v3.
	Models func(v3 bool) (*Models, error)
}

// Models are the OpenAPI schemas of a custom resource.
type Models struct {
	// Name and ListName of the schemas, e.g. "com.example.v1.Foo".
	Name, ListName string
	Object, List   json.RawMessage
}
