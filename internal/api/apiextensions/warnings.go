package apiextensions

import (
	"context"
	"fmt"
	"slices"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// warnings returns warnings for parts of a definition's schemas that have no effect: unknown
// formats, and sets of objects or lists. It omits those that the stored definition old has as well;
// old is nil on create.
func warnings(_ context.Context, d, old *crd) []string {
	now := ineffective(d)
	if old == nil || len(now) == 0 {
		return now
	}
	before := ineffective(old)
	return slices.DeleteFunc(now, func(w string) bool { return slices.Contains(before, w) })
}

// ineffective returns the warnings for all parts of a definition's schemas that have no effect. It returns none if the
// definition cannot be converted, because validation reports that.
func ineffective(d *crd) []string {
	in, err := toInternal(d)
	if err != nil {
		return nil
	}
	known := environment.DefaultCompatibilityVersion()
	var formats, sets []string
	look := func(v *internal.CustomResourceValidation) {
		if v == nil || v.OpenAPIV3Schema == nil {
			return
		}
		validation.SchemaHas(v.OpenAPIV3Schema, func(s *internal.JSONSchemaProps) bool {
			formats = append(formats, unknownFormats(s, known)...)
			if text := setOfWhat(s); text != "" && !slices.Contains(sets, text) {
				sets = append(sets, text)
			}
			return false
		})
	}
	look(in.Spec.Validation)
	for i := range in.Spec.Versions {
		look(in.Spec.Versions[i].Schema)
	}
	slices.Sort(sets)
	return append(formats, sets...)
}

// unknownFormats returns a warning for each format of s that Kubernetes does not know in the version known.
func unknownFormats(s *internal.JSONSchemaProps, known *version.Version) []string {
	if s.Format == "" {
		return nil
	}
	var out []string
	of := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}
	for _, f := range schemavalidation.GetUnrecognizedFormats(of, known) {
		out = append(out, fmt.Sprintf("unrecognized format %q", f))
	}
	return out
}

// setOfWhat returns a warning for a schema of a list that is a set of objects or lists, or "".
func setOfWhat(s *internal.JSONSchemaProps) string {
	if s.XListType == nil || *s.XListType != "set" || s.Items == nil || s.Items.Schema == nil {
		return ""
	}
	switch t := s.Items.Schema.Type; t {
	case "object", "array":
		return fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", t)
	}
	return ""
}
