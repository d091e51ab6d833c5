package customresource

import (
	"fmt"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// compiled contains the schema of a version in the forms that are needed to read and default
// objects. Writes also need checks.
type compiled struct {
	// props is the original schema in the library's internal form, or nil if the version has none.
	props *internal.JSONSchemaProps
	// structural is the structural schema, which pruning and defaulting use. It is nil if the
	// version has no schema.
	structural *structuralschema.Structural
}

// checks contains the compiled validators that writes need. status is for the status subresource.
type checks struct {
	schema, status validation.SchemaValidator
	// rules contains the CEL validation rules. It is nil if there are none.
	rules *cel.Validator
}

// properties returns a copy of the schema in the apiextensions library's internal form. It returns nil if the version
// has no schema.
func (v *kindVersion) properties() (*internal.JSONSchemaProps, error) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	out := &internal.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), out, nil); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	return out.OpenAPIV3Schema, nil
}

// compile compiles the schema of the version at the first call of v.schema, which caches the result. The result is
// empty if the version has no schema. It returns an error if the schema is not structural, unless the definition
// preserves unknown fields.
func (v *kindVersion) compile() (*compiled, error) {
	props, err := v.properties()
	if err != nil || props == nil {
		return &compiled{}, err
	}
	s, err := structuralschema.NewStructural(props)
	if v.of.crd.Spec.PreserveUnknownFields {
		// In that case the schema need not be structural.
		return &compiled{props: props, structural: s}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema of %s is not structural: %w", v.gvk, err)
	}
	// Pruning modifies the defaults, which are shared with the schema.
	s = s.DeepCopy()
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, fmt.Errorf("defaults of %s: %w", v.gvk, err)
	}
	return &compiled{props: props, structural: s}, nil
}

// compileChecks compiles the validators of the version, including the CEL validation rules, at the first call of
// v.checks, which caches the result.
func (v *kindVersion) compileChecks() (*checks, error) {
	c, err := v.schema()
	if err != nil {
		return nil, err
	}
	out := &checks{}
	if out.schema, _, err = validation.NewSchemaValidator(c.props); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	if c.props != nil && v.Subresources != nil && v.Subresources.Status != nil {
		if status, ok := c.props.Properties["status"]; ok {
			if out.status, _, err = validation.NewSchemaValidator(&status); err != nil {
				return nil, fmt.Errorf("schema of the status of %s: %w", v.gvk, err)
			}
		}
	}
	if c.structural != nil {
		out.rules = cel.NewValidator(c.structural, true, celconfig.PerCallLimit)
	}
	return out, nil
}
