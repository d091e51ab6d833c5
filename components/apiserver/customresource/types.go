package customresource

import (
	"encoding/json"
	"fmt"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// metadataTypes is the schema of an object's metadata for server-side apply: it defines which lists
// and objects are sets, maps or atomic.
const metadataTypes = `{
"ObjectMeta": {"type": "object", "properties": {
  "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
  "creationTimestamp": {"type": "string", "format": "date-time"},
  "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
  "deletionTimestamp": {"type": "string", "format": "date-time"},
  "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
  "generateName": {"type": "string"},
  "generation": {"type": "integer", "format": "int64"},
  "labels": {"type": "object", "additionalProperties": {"type": "string"}},
  "managedFields": {"type": "array", "items": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry"}, "x-kubernetes-list-type": "atomic"},
  "name": {"type": "string"},
  "namespace": {"type": "string"},
  "ownerReferences": {"type": "array", "items": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]},
  "resourceVersion": {"type": "string"},
  "selfLink": {"type": "string"},
  "uid": {"type": "string"}}},
"ManagedFieldsEntry": {"type": "object", "properties": {
  "apiVersion": {"type": "string"}, "fieldsType": {"type": "string"},
  "fieldsV1": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"},
  "manager": {"type": "string"}, "operation": {"type": "string"}, "subresource": {"type": "string"},
  "time": {"type": "string", "format": "date-time"}}},
"FieldsV1": {"type": "object"},
"OwnerReference": {"type": "object", "x-kubernetes-map-type": "atomic", "required": ["apiVersion", "kind", "name", "uid"], "properties": {
  "apiVersion": {"type": "string"}, "blockOwnerDeletion": {"type": "boolean"}, "controller": {"type": "boolean"},
  "kind": {"type": "string"}, "name": {"type": "string"}, "uid": {"type": "string", "default": ""}}}
}`

// hasAtomicMap reports whether a schema, which may be nil, contains a map with x-kubernetes-map-type: atomic,
// outside of lists.
func hasAtomicMap(s *apiextensionsv1.JSONSchemaProps) bool {
	if s == nil {
		return false
	}
	if s.XMapType != nil && *s.XMapType == "atomic" {
		return true
	}
	if s.AdditionalProperties != nil && hasAtomicMap(s.AdditionalProperties.Schema) {
		return true
	}
	for _, child := range s.Properties {
		if hasAtomicMap(&child) {
			return true
		}
	}
	return false
}

// makeTypes returns a converter with the schemas of all versions, which server-side apply uses to
// merge custom resources. The types of fields without a schema are deduced from the object.
func (d *definition) makeTypes() (managedfields.TypeConverter, error) {
	var known map[string]*spec.Schema
	if err := json.Unmarshal([]byte(metadataTypes), &known); err != nil {
		return nil, fmt.Errorf("types of metadata: %w", err)
	}
	all := make(map[string]*spec.Schema, len(known)+len(d.versions))
	for name, s := range known {
		all[metaModel+name] = s
	}
	for _, v := range d.versions {
		s, err := v.published(publishing{v3: true, types: true})
		if err != nil {
			return nil, err
		}
		all[modelName(v.gvk.Group, v.gvk.Version, v.gvk.Kind)] = s
	}
	types, err := managedfields.NewTypeConverter(all, d.crd.Spec.PreserveUnknownFields)
	if err != nil {
		return nil, fmt.Errorf("types of %s: %w", d.crd.Name, err)
	}
	return types, nil
}
