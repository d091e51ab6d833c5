package customresource

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/api"
)

// coerceOptions are the options of definition.coerce. The zero value is for objects from clients
// whose unknown fields are dropped silently.
type coerceOptions struct {
	// report means that coerce returns the paths of unknown fields, for field validation.
	report bool
	// stored means that the object was read from etcd. It may have been written before its
	// validation existed, so invalid metadata is dropped instead of rejected.
	stored bool
}

// coerce makes a custom resource match the schema of its version: it removes fields that the schema does not have,
// unless the definition preserves them, and nulls where the schema does not allow them, and checks or repairs the
// metadata of the object and of embedded resources. It modifies o. An object of another kind only has its metadata
// checked. unknown contains the paths of the removed fields if how.report is set.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning
func (d *definition) coerce(o api.Object, how coerceOptions) (unknown []string, err error) {
	obj := unstructuredOf(o)
	kind, hasKind, err := unstructured.NestedString(obj.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(obj.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(obj.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: how.stored, ReturnUnknownFieldPaths: how.report,
	})
	if err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	if gv.Group == d.crd.Spec.Group && kind == d.names.Kind {
		s, err := d.structural(gv.Version)
		if err != nil {
			return nil, err
		}
		if !d.crd.Spec.PreserveUnknownFields {
			unknown = append(unknown, pruning.PruneWithOptions(obj.Object, s, true,
				structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: how.report})...)
			defaulting.PruneNonNullableNullsWithoutDefaults(obj.Object, s)
		}
		bad, paths := objectmeta.CoerceWithOptions(nil, obj.Object, s, false, objectmeta.CoerceOptions{
			DropInvalidFields: how.stored, ReturnUnknownFieldPaths: how.report,
		})
		if bad != nil {
			return nil, bad
		}
		unknown = append(unknown, paths...)
		if how.stored && hasMeta && meta.Generation == 0 {
			meta.Generation = 1
		}
	}
	if hasKind {
		obj.SetKind(kind)
	}
	if hasVersion {
		obj.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		if err := objectmeta.SetObjectMeta(obj.Object, meta); err != nil {
			return nil, err
		}
	}
	return unknown, nil
}

// structural returns the structural schema of the version with this name, or nil if the version does not exist or has
// no schema. It returns an error if the schema is invalid.
func (d *definition) structural(name string) (*structuralschema.Structural, error) {
	v := d.versions[name]
	if v == nil {
		return nil, nil
	}
	c, err := v.schema()
	if err != nil {
		return nil, err
	}
	return c.structural, nil
}

// setDefaults sets default values for missing fields of obj, from the schema of obj's own version, not from that of v.
func (v *kindVersion) setDefaults(obj api.Object) { v.of.setDefaults(obj) }

// setDefaults sets the default values that the schema of o's version has for missing fields. It
// does nothing if the schema is invalid.
func (d *definition) setDefaults(o api.Object) {
	obj := unstructuredOf(o)
	// coerce has already reported the error.
	if s, err := d.structural(obj.GroupVersionKind().Version); err == nil && s != nil {
		defaulting.Default(obj.Object, s)
	}
}

// load prepares an object that was read from etcd for clients: it removes what the schema of its version does not
// allow, and sets default values. It modifies obj. It returns an error if the schema is invalid or the object has
// malformed fields that cannot be dropped.
func (d *definition) load(obj api.Object) error {
	if _, err := d.coerce(obj, coerceOptions{stored: true}); err != nil {
		return err
	}
	d.setDefaults(obj)
	return nil
}

// convertTo returns o converted to another version of the definition, without the fields that this version does not
// have. The result is always a new object, even if o already has the version. It returns the same errors as
// convertRaw.
func (d *definition) convertTo(o api.Object, version string) (api.Object, error) {
	out, err := d.convertRaw(o, version)
	if err != nil || unstructuredOf(o).GroupVersionKind().Version == version {
		return out, err
	}
	if _, err := d.coerce(out, coerceOptions{}); err != nil {
		return nil, err
	}
	return out, nil
}

// convertRaw is like convertTo, but keeps fields that the schema of the new version does not have.
// It returns an error if one of the versions is not in the definition, or if the conversion webhook
// fails.
func (d *definition) convertRaw(o api.Object, version string) (api.Object, error) {
	obj := unstructuredOf(o)
	from := obj.GroupVersionKind()
	to := schema.GroupVersion{Group: d.crd.Spec.Group, Version: version}
	if d.versions[version] == nil {
		return nil, fmt.Errorf("request to convert CR to an invalid group/version: %s", to)
	}
	if d.versions[from.Version] == nil || from.Group != to.Group {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", from.GroupVersion())
	}
	obj = obj.DeepCopy()
	if from.Version == version {
		return obj, nil
	}
	return asObject(d.convert(obj, to))
}

// asObject returns obj as an api.Object, or nil after an error. Without it, a nil pointer would
// become an interface that is not nil.
func asObject(obj *unstructured.Unstructured, err error) (api.Object, error) {
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// toStored returns obj as it is stored in etcd: in the storage version, without fields that the schema does not have,
// which admission may have added. It may modify obj.
func (v *kindVersion) toStored(obj api.Object) (api.Object, error) {
	if v.gvk.Version != v.of.storage {
		return v.of.convertTo(obj, v.of.storage)
	}
	if _, err := v.of.coerce(obj, coerceOptions{}); err != nil {
		return nil, err
	}
	return obj, nil
}

// fromStored returns an object from the store in this version. The argument is shared and not
// modified. The result is the argument itself if it already has this version.
func (v *kindVersion) fromStored(obj api.Object) (api.Object, error) {
	if obj.GetObjectKind().GroupVersionKind().Version == v.gvk.Version {
		return obj, nil
	}
	return v.of.convertTo(obj, v.gvk.Version)
}
