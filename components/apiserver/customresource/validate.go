package customresource

import (
	"context"
	"fmt"
	"math"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"hyperkube/internal/api"
)

// validators returns the compiled schema and the validators of the version. If compiling them fails, it returns that
// error as a list for the client.
func (v *kindVersion) validators() (*compiled, *checks, field.ErrorList) {
	s, err := v.schema()
	if err == nil {
		var c *checks
		if c, err = v.checks(); err == nil {
			return s, c, nil
		}
	}
	return nil, nil, field.ErrorList{field.InternalError(nil, err)}
}

// validateCreate validates a new object: metadata, schema, values at the paths of the scale
// subresource, embedded resources, lists that are sets or maps, and CEL rules.
func (v *kindVersion) validateCreate(ctx context.Context, o api.Object) field.ErrorList {
	obj := unstructuredOf(o)
	s, c, errs := v.validators()
	if errs != nil {
		return errs
	}
	if errs = v.validateType(obj); errs == nil {
		errs = apivalidation.ValidateObjectMetaAccessor(obj, v.namespaced(), apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
		errs = append(errs, schemavalidation.ValidateCustomResource(nil, obj.Object, c.schema)...)
		errs = append(errs, v.validateScaleSpec(obj)...)
		errs = append(errs, v.validateScaleStatus(obj)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, obj.Object, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, obj.Object)...)
	return v.validateRules(ctx, errs, obj, nil)
}

// validateUpdate validates a changed object. Errors in parts that are the same as in before are
// ignored (validation ratcheting).
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-ratcheting
func (v *kindVersion) validateUpdate(ctx context.Context, o, before api.Object) field.ErrorList {
	obj, old := unstructuredOf(o), unstructuredOf(before)
	s, c, errs := v.validators()
	if errs != nil {
		return errs
	}
	pair := common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: s.structural})
	errs = v.validateMeta(obj, old)
	if wrong := v.validateType(obj); wrong != nil {
		errs = append(errs, wrong...)
	} else {
		errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, field.NewPath("metadata"))...)
		errs = append(errs, schemavalidation.ValidateCustomResourceUpdate(nil, obj.Object, old.Object, c.schema, schemavalidation.WithRatcheting(pair))...)
		errs = append(errs, v.validateScaleSpec(obj)...)
		errs = append(errs, v.validateScaleStatus(obj)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, obj.Object, s.structural, false)...)
	if len(listtype.ValidateListSetsAndMaps(nil, s.structural, old.Object)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, obj.Object)...)
	}
	return v.validateRules(ctx, errs, obj, old, cel.WithRatcheting(pair))
}

// validateMeta validates the metadata of a changed object. As in upstream, an error that the later
// validation of the object also finds is reported twice.
func (v *kindVersion) validateMeta(obj, old *unstructured.Unstructured) field.ErrorList {
	at := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(obj, v.namespaced(), pathvalidation.ValidatePathSegmentName, at)
	return append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, at)...)
}

// namespaced reports whether the custom resources have a namespace.
func (v *kindVersion) namespaced() bool {
	return v.of.crd.Spec.Scope == apiextensionsv1.NamespaceScoped
}

// validateStatus validates an object that was written through the status subresource: the metadata, the status, and
// the CEL rules. Errors in parts that are the same as in before are ignored.
func (v *kindVersion) validateStatus(ctx context.Context, o, before api.Object) field.ErrorList {
	obj, old := unstructuredOf(o), unstructuredOf(before)
	s, c, errs := v.validators()
	if errs != nil {
		return errs
	}
	pair := common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: s.structural})
	var options []schemavalidation.ValidationOption
	if s.structural != nil {
		options = append(options, schemavalidation.WithRatcheting(pair.Key("status")))
	}
	errs = v.validateMeta(obj, old)
	if wrong := v.validateType(obj); wrong != nil {
		errs = append(errs, wrong...)
	} else {
		errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, field.NewPath("metadata"))...)
		if status, ok := obj.Object["status"]; ok {
			errs = append(errs, schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], c.status, options...)...)
		}
		errs = append(errs, v.validateScaleStatus(obj)...)
	}
	if len(listtype.ValidateListSetsAndMaps(nil, s.structural, old.Object)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, obj.Object)...)
	}
	return v.validateRules(ctx, errs, obj, old, cel.WithRatcheting(pair))
}

// validateRules appends the errors of the schema's CEL rules to errs. It does nothing if there are no rules. The
// rules can only be evaluated if the object matches the schema: after errors such as a wrong type it appends a note
// that the rules were not checked. old is nil if obj is new.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
func (v *kindVersion) validateRules(ctx context.Context, errs field.ErrorList, obj, old *unstructured.Unstructured, options ...cel.Option) field.ErrorList {
	s, c, failed := v.validators()
	if failed != nil || c.rules == nil {
		return append(errs, failed...)
	}
	for _, e := range errs {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return append(errs, field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
		}
	}
	var before any
	if old != nil {
		before = old.Object
	}
	more, _ := c.rules.Validate(ctx, nil, s.structural, obj.Object, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, more...)
}

// validateType returns errors if obj does not have the kind and apiVersion of this version.
func (v *kindVersion) validateType(obj *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if kind := obj.GetKind(); kind != v.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, fmt.Sprintf("must be %v", v.gvk.Kind)))
	}
	if want := v.gvk.GroupVersion().String(); obj.GetAPIVersion() != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), obj.GetAPIVersion(), fmt.Sprintf("must be %v", want)))
	}
	return errs
}

// validateScaleSpec validates the value at the scale subresource's path of the desired replicas. It
// returns nil if there is no scale subresource.
func (v *kindVersion) validateScaleSpec(obj *unstructured.Unstructured) field.ErrorList {
	if v.Subresources == nil || v.Subresources.Scale == nil {
		return nil
	}
	return validateReplicas(obj, v.Subresources.Scale.SpecReplicasPath)
}

// validateScaleStatus validates the values at the scale subresource's paths of the actual replicas and, if there is
// such a path, the label selector. It returns nil if there is no scale subresource.
func (v *kindVersion) validateScaleStatus(obj *unstructured.Unstructured) field.ErrorList {
	if v.Subresources == nil || v.Subresources.Scale == nil {
		return nil
	}
	s := v.Subresources.Scale
	errs := validateReplicas(obj, s.StatusReplicasPath)
	if s.LabelSelectorPath != nil {
		if value, _, err := unstructured.NestedString(obj.Object, splitPath(*s.LabelSelectorPath)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*s.LabelSelectorPath), value, err.Error()))
		}
	}
	return errs
}

// validateReplicas returns an error if the value at path is not an integer between 0 and 2³¹-1. A
// missing value is valid.
func validateReplicas(obj *unstructured.Unstructured, path string) field.ErrorList {
	n, _, err := unstructured.NestedInt64(obj.Object, splitPath(path)...)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(field.NewPath(path), n, err.Error())}
	case n < 0:
		return field.ErrorList{field.Invalid(field.NewPath(path), n, "should be a non-negative integer")}
	case n > math.MaxInt32:
		return field.ErrorList{field.Invalid(field.NewPath(path), n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32))}
	}
	return nil
}
