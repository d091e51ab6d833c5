package customresource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"hyperkube/components/apiserver/openapi/version2"
	"hyperkube/internal/api"
)

const (
	metaModel     = "io.k8s.apimachinery.pkg.apis.meta.v1."
	v2Prefix      = "#/definitions/"
	v3Prefix      = "#/components/schemas/"
	kindExtension = "x-kubernetes-group-version-kind"
)

// publishing selects the form of a published schema: OpenAPI v2 or v3 for clients, or the form for
// server-side apply.
type publishing struct {
	// v3 selects OpenAPI v3 instead of v2.
	v3 bool
	// types means that the schema is for server-side apply, which needs only the structure and no
	// value validations.
	types bool
}

// prefix returns the prefix of JSON references to other schemas, which depends on the OpenAPI
// version.
func (p publishing) prefix() string {
	if p.v3 {
		return v3Prefix
	}
	return v2Prefix
}

// ref returns a schema that refers to the published schema with the name model and has its own
// description. In OpenAPI v3 a reference cannot have a description beside it, so there the
// reference is within an allOf.
func (p publishing) ref(model, description string) spec.Schema {
	ref := spec.RefSchema(p.prefix() + model)
	if !p.v3 || p.types {
		return *ref.WithDescription(description)
	}
	out := spec.Schema{SchemaProps: spec.SchemaProps{Description: description, AllOf: []spec.Schema{*ref}}}
	if description == "" {
		return *ref
	}
	return out
}

// modelName returns the name of a kind's schema, e.g. "com.example.v1.Foo".
func modelName(group, version, kind string) string {
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + version + "." + kind
}

// models returns the schemas of the objects and lists of this version for the OpenAPI documents, as JSON: of version
// 3, or of version 2 without default values.
func (v *kindVersion) models(v3 bool) (*api.Models, error) {
	p := publishing{v3: v3}
	object, err := v.published(p)
	if err != nil {
		return nil, err
	}
	if !v3 {
		object = version2.WithoutDefaults(object)
	}
	names := v.of.names
	out := &api.Models{
		Name:     modelName(v.gvk.Group, v.gvk.Version, names.Kind),
		ListName: modelName(v.gvk.Group, v.gvk.Version, names.ListKind),
	}
	if out.Object, err = json.Marshal(object); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	if out.List, err = json.Marshal(v.list(p, out.Name)); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	return out, nil
}

// published returns the schema of the objects in the given form, with the properties apiVersion, kind and metadata.
// If the version has no schema, or one that cannot be published in this form, it is an object with any content.
func (v *kindVersion) published(p publishing) (*spec.Schema, error) {
	s, err := v.publishable()
	if err != nil {
		return nil, err
	}
	var out *spec.Schema
	switch {
	case s == nil, !p.v3 && (s.XPreserveUnknownFields || v.of.crd.Spec.PreserveUnknownFields):
		// If the schema had any property, kubectl would reject all others.
		out = &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	default:
		s = s.Unfold()
		if p.types {
			s = s.StripValueValidations().StripNullable()
		}
		if !p.v3 {
			s = openapiv2.ToStructuralOpenAPIV2(s)
		}
		out = s.ToKubeOpenAPI()
		out.SetProperty("metadata", p.ref(metaModel+"ObjectMeta", metav1beta1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]))
		typeMeta(out)
		embedded(out, p)
	}
	out.AddExtension(kindExtension, []any{map[string]any{"group": v.gvk.Group, "version": v.gvk.Version, "kind": v.of.names.Kind}})
	v.selectable(out)
	return out, nil
}

// publishable returns the structural schema of the version. It returns nil if there is no schema, or if it is not
// structural or has invalid types and therefore cannot be published. It returns an error if the schema cannot be
// converted.
func (v *kindVersion) publishable() (*structuralschema.Structural, error) {
	props, err := v.properties()
	if err != nil || props == nil || validation.SchemaHasInvalidTypes(props) {
		return nil, err
	}
	s, err := structuralschema.NewStructural(props)
	if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
		return nil, nil
	}
	return s, nil
}

// list returns the schema of lists of the objects, whose own schema has the name model.
func (v *kindVersion) list(p publishing, model string) *spec.Schema {
	names := v.of.names
	items := spec.ArrayProperty(spec.RefSchema(p.prefix() + model))
	out := new(spec.Schema).Typed("object", "").
		WithDescription(fmt.Sprintf("%s is a list of %s", names.ListKind, names.Kind)).
		WithRequired("items").
		SetProperty("items", *items.WithDescription(fmt.Sprintf("List of %s. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", names.Plural))).
		SetProperty("metadata", p.ref(metaModel+"ListMeta", metav1beta1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]))
	typeMeta(out)
	out.AddExtension(kindExtension, []any{map[string]any{"group": v.gvk.Group, "version": v.gvk.Version, "kind": names.ListKind}})
	v.selectable(out)
	return out
}

// selectable adds the extension with the names of the selectable fields to a schema, so that
// clients know which field selectors work.
func (v *kindVersion) selectable(out *spec.Schema) {
	if len(v.SelectableFields) == 0 {
		return
	}
	var fields []any
	for _, f := range v.SelectableFields {
		fields = append(fields, map[string]any{"fieldPath": strings.TrimPrefix(f.JSONPath, ".")})
	}
	out.AddExtension("x-kubernetes-selectable-fields", fields)
}

// typeMeta adds the properties kind and apiVersion to a schema.
func typeMeta(out *spec.Schema) {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	for _, name := range []string{"apiVersion", "kind"} {
		out.SetProperty(name, *spec.StringProperty().WithDescription(docs[name]))
	}
}

// embedded adds the properties kind, apiVersion and metadata to all parts of a schema that are embedded resources
// (x-kubernetes-embedded-resource). In OpenAPI v2 it omits parts that preserve unknown fields.
func embedded(s *spec.Schema, p publishing) {
	if s == nil {
		return
	}
	for name := range s.Properties {
		child := s.Properties[name]
		embedded(&child, p)
		s.Properties[name] = child
	}
	if s.Items != nil {
		embedded(s.Items.Schema, p)
	}
	if s.AdditionalProperties != nil {
		embedded(s.AdditionalProperties.Schema, p)
	}
	if all, ok := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); ok && all && !p.v3 {
		return // kubectl would reject unknown fields
	}
	if whole, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !ok || !whole {
		return
	}
	docs := "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription("apiVersion defines the versioned schema of this representation of an object. More info: " + docs + "#resources"))
	s.SetProperty("kind", *spec.StringProperty().WithDescription("kind is a string value representing the type of this object. In CamelCase. More info: " + docs + "#types-kinds"))
	s.SetProperty("metadata", p.ref(metaModel+"ObjectMeta", metav1beta1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}
