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

// coercion says how an object is coerced.
type coercion struct {
	// report collects the paths of unknown fields.
	report bool
	// stored: it comes from etcd, where there may be what was written before
	// there were checks. That is repaired instead of refused.
	stored bool
}

// coerce takes away from obj what its version's schema does not have, nulls
// where none may be, and what is no metadata.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning
func (d *definition) coerce(o api.Object, how coercion) (unknown []string, err error) {
	obj := content(o)
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

// structural is the schema of a version; nil if there is none.
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

// setDefaults fills what is unset and has a default.
func (v *kindVersion) setDefaults(obj api.Object) { v.of.setDefaults(obj) }

func (d *definition) setDefaults(o api.Object) {
	obj := content(o)
	// An error has been told by coerce.
	if s, err := d.structural(obj.GroupVersionKind().Version); err == nil && s != nil {
		defaulting.Default(obj.Object, s)
	}
}

// load makes of what was stored what is served.
func (d *definition) load(obj api.Object) error {
	if _, err := d.coerce(obj, coercion{stored: true}); err != nil {
		return err
	}
	d.setDefaults(obj)
	return nil
}

// convertTo returns obj as one of another version, without what that does not
// know, in any case a new object.
func (d *definition) convertTo(o api.Object, version string) (api.Object, error) {
	out, err := d.convertRaw(o, version)
	if err != nil || content(o).GroupVersionKind().Version == version {
		return out, err
	}
	if _, err := d.coerce(out, coercion{}); err != nil {
		return nil, err
	}
	return out, nil
}

// convertRaw is convertTo, but for taking nothing away.
func (d *definition) convertRaw(o api.Object, version string) (api.Object, error) {
	obj := content(o)
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

// asObject keeps a nil pointer from becoming an object.
func asObject(obj *unstructured.Unstructured, err error) (api.Object, error) {
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// toStored prunes what admission has added and makes obj one of the storage
// version.
func (v *kindVersion) toStored(obj api.Object) (api.Object, error) {
	if v.gvk.Version != v.of.storage {
		return v.of.convertTo(obj, v.of.storage)
	}
	if _, err := v.of.coerce(obj, coercion{}); err != nil {
		return nil, err
	}
	return obj, nil
}

// fromStored returns a shared object as one of this version: itself, if it is
// one.
func (v *kindVersion) fromStored(obj api.Object) (api.Object, error) {
	if obj.GetObjectKind().GroupVersionKind().Version == v.gvk.Version {
		return obj, nil
	}
	return v.of.convertTo(obj, v.gvk.Version)
}
