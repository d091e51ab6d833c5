package fieldmanager

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// scaleKind is the kind of the scale subresource's objects. It is not part of the schema that
// client-go publishes, so scaleSchema defines it.
var scaleKind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}

// scaleSchema is the schema of Scale for server-side apply, in the format of client-go's schema.
const scaleSchema = `types:
- name: io.k8s.api.autoscaling.v1.Scale
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: meta}
    - name: spec
      type: {namedType: spec}
    - name: status
      type: {namedType: status}
- name: meta
  map:
    fields:
    - name: annotations
      type: {namedType: texts}
    - name: creationTimestamp
      type: {scalar: untyped}
    - name: deletionGracePeriodSeconds
      type: {scalar: numeric}
    - name: deletionTimestamp
      type: {scalar: untyped}
    - name: finalizers
      type:
        list:
          elementType: {scalar: string}
          elementRelationship: associative
    - name: generateName
      type: {scalar: string}
    - name: generation
      type: {scalar: numeric}
    - name: labels
      type: {namedType: texts}
    - name: managedFields
      type:
        list:
          elementType: {namedType: any}
          elementRelationship: atomic
    - name: name
      type: {scalar: string}
    - name: namespace
      type: {scalar: string}
    - name: ownerReferences
      type:
        list:
          elementType: {namedType: owner}
          elementRelationship: associative
          keys: [uid]
    - name: resourceVersion
      type: {scalar: string}
    - name: selfLink
      type: {scalar: string}
    - name: uid
      type: {scalar: string}
- name: texts
  map:
    elementType: {scalar: string}
- name: owner
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
      default: ""
    - name: blockOwnerDeletion
      type: {scalar: boolean}
    - name: controller
      type: {scalar: boolean}
    - name: kind
      type: {scalar: string}
      default: ""
    - name: name
      type: {scalar: string}
      default: ""
    - name: uid
      type: {scalar: string}
      default: ""
    elementRelationship: atomic
- name: spec
  map:
    fields:
    - name: replicas
      type: {scalar: numeric}
- name: status
  map:
    fields:
    - name: replicas
      type: {scalar: numeric}
    - name: selector
      type: {scalar: string}
- name: any
  scalar: untyped
  list:
    elementType: {namedType: any}
    elementRelationship: atomic
  map:
    elementType: {namedType: any}
    elementRelationship: separable
`

// withScale is a TypeConverter that supports Scale, and all types of another converter.
type withScale struct {
	managedfields.TypeConverter
	scale managedfields.TypeConverter
}

// newWithScale returns a converter that supports Scale and the types of others.
func newWithScale(others managedfields.TypeConverter) (withScale, error) {
	parser, err := typed.NewParser(typed.YAMLObject(scaleSchema))
	if err != nil {
		return withScale{}, fmt.Errorf("schema of Scale: %w", err)
	}
	return withScale{others, managedfields.NewSchemeTypeConverter(scheme.Scheme, parser)}, nil
}

// ObjectToTyped implements managedfields.TypeConverter. It uses scaleSchema for Scale and the other
// converter for all other kinds.
func (w withScale) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind() == scaleKind {
		return w.scale.ObjectToTyped(obj, opts...)
	}
	return w.TypeConverter.ObjectToTyped(obj, opts...)
}
