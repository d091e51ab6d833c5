// Package version2 converts schemas to OpenAPI v2, which supports less than v3. It is a separate
// package so that the generator can import it before the generated schemas exist.
package version2

import (
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// WithoutDefaults returns a schema without default values, which OpenAPI v2 documents have never
// contained. It does not modify its argument. The result shares the parts that have no defaults.
func WithoutDefaults(schema *spec.Schema) *spec.Schema {
	walker := schemamutation.Walker{
		SchemaCallback: func(s *spec.Schema) *spec.Schema {
			if s.Default == nil {
				return s
			}
			plain := *s
			plain.Default = nil
			return &plain
		},
		RefCallback: schemamutation.RefCallbackNoop,
	}
	return walker.WalkSchema(schema)
}
