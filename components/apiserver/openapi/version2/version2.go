// Package version2 makes of a schema what version 2 of OpenAPI is told, which is
// less than version 3. It stands by itself for those who make schemas before the
// server does.
package version2

import (
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// WithoutDefaults takes away the default values, which version 2 has never had.
// What has none is shared with the schema given, which is left as it is.
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
