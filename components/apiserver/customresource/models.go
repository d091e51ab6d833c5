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

// publishing selects the use of a schema.
type publishing struct {
	v3 bool
	// types means that the schema is for server-side apply, which only needs the structure.
	types bool
}

func (p publishing) prefix() string {
	if p.v3 {
		return v3Prefix
	}
	return v2Prefix
}

// ref returns a reference to a published schema. Siblings of a reference are only valid in v2, so
// in v3 the reference is within an allOf.
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

// models returns the published schemas of a version.
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

// published returns the schema of the objects.
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

// publishable returns the schema if it can be published, and nil if it is not structural.
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

// typeMeta adds the properties kind and apiVersion.
func typeMeta(out *spec.Schema) {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	for _, name := range []string{"apiVersion", "kind"} {
		out.SetProperty(name, *spec.StringProperty().WithDescription(docs[name]))
	}
}

// embedded adds type and object metadata to the schemas of embedded resources.
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
