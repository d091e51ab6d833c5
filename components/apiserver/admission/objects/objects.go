// Package objects implements admission.ObjectInterfaces for admission plugins of k8s.io/apiserver.
// Those plugins expect an internal version of every kind. Here the published version takes its
// role, so most conversions only copy the outermost struct.
package objects

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
)

// New returns the interfaces with which webhooks and policies create, convert and default objects
// of the built-in kinds in reg. The result is safe for concurrent use.
func New(reg *registry.Registry) admission.ObjectInterfaces { return objects{reg} }

// objects is the implementation that New returns.
type objects struct{ registry *registry.Registry }

// GetObjectCreater returns client-go's scheme, which creates objects of all built-in kinds.
func (objects) GetObjectCreater() runtime.ObjectCreater { return scheme.Scheme }

// GetObjectTyper returns client-go's scheme, which knows the kinds of all built-in types.
func (objects) GetObjectTyper() runtime.ObjectTyper { return scheme.Scheme }

// GetObjectDefaulter returns o itself, whose method Default sets the defaults of built-in kinds.
func (o objects) GetObjectDefaulter() runtime.ObjectDefaulter { return o }

// GetObjectConvertor returns a convertor between the served versions of each kind.
func (o objects) GetObjectConvertor() runtime.ObjectConvertor { return convertor{o} }

// GetEquivalentResourceMapper returns a mapper that finds the resources which serve the same
// objects in other versions or groups.
func (o objects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return equivalents(o)
}

// resource returns the registry's resource for the type of a built-in object, or nil if it is not
// served.
func (o objects) resource(obj runtime.Object) *registry.Resource {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil || len(kinds) == 0 {
		return nil
	}
	return o.registry.Kind(kinds[0])
}

// Default sets the default values of a built-in object. It does nothing for objects whose kind is not served, such as
// custom resources.
func (o objects) Default(in runtime.Object) {
	obj, ok := in.(api.Object)
	if !ok {
		return
	}
	if r := o.resource(obj); r != nil && r.Default != nil {
		r.Default(obj)
	}
}

// equivalents finds resources that share a collection in the store and therefore serve the same
// objects, so that a webhook for one of them is also called for the others.
type equivalents struct{ registry *registry.Registry }

// EquivalentResourcesFor returns the resources, including gvr itself, that serve the same stored objects as gvr and
// have the subresource. It returns nil if gvr is not served or stores no objects.
func (e equivalents) EquivalentResourcesFor(gvr schema.GroupVersionResource, subresource string) []schema.GroupVersionResource {
	r := e.registry.Lookup(gvr)
	if r == nil || r.Collection == nil {
		return nil
	}
	var out []schema.GroupVersionResource
	for _, other := range e.registry.Resources() {
		if other.Collection == r.Collection && !e.KindFor(other.GVR(), subresource).Empty() {
			out = append(out, other.GVR())
		}
	}
	return out
}

// KindFor returns the kind of a resource or subresource, or an empty kind if it is not served.
func (e equivalents) KindFor(gvr schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	r := e.registry.Lookup(gvr)
	if r == nil {
		return schema.GroupVersionKind{}
	}
	if subresource == "" {
		return r.GVK()
	}
	if _, ok := r.Views[subresource]; ok {
		return r.GVK()
	}
	if r.Scale != nil && subresource == "scale" {
		return schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	}
	if a := r.Action(subresource); a != nil {
		return a.Kind
	}
	if s := r.Stream(subresource); s != nil {
		return s.Kind
	}
	return schema.GroupVersionKind{}
}

// convertor converts between the versions of a kind, and from unstructured objects. The result may
// share memory with the input.
type convertor struct{ objects objects }

// Convert converts in to the type of out and stores the result in out. The apiVersion and kind of out are kept. It
// returns an error if the two types are not versions of one kind.
func (c convertor) Convert(in, out, _ any) error {
	from, ok1 := in.(runtime.Object)
	to, ok2 := out.(runtime.Object)
	if !ok1 || !ok2 {
		return fmt.Errorf("converting a %T to a %T: no API objects", in, out)
	}
	if from == to {
		return nil
	}
	gvk := to.GetObjectKind().GroupVersionKind()
	defer func() { to.GetObjectKind().SetGroupVersionKind(gvk) }()
	if copyIfSameType(from, to) {
		return nil
	}
	if u, ok := from.(*unstructured.Unstructured); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, to); err != nil {
			return fmt.Errorf("converting a %s: %w", u.GetKind(), err)
		}
		return nil
	}
	converted, err := c.convertVersion(from, to)
	if err != nil {
		return err
	}
	if !copyIfSameType(converted, to) {
		return fmt.Errorf("converting a %T to a %T: got a %T", from, to, converted)
	}
	return nil
}

// copyIfSameType assigns *from to *to and returns true if both have the same type. Otherwise it returns false.
func copyIfSameType(from, to runtime.Object) bool {
	f, t := reflect.ValueOf(from), reflect.ValueOf(to)
	if f.Type() != t.Type() || f.Kind() != reflect.Pointer {
		return false
	}
	t.Elem().Set(f.Elem())
	return true
}

// convertVersion converts an object to the version of the type of to, through the version in which
// the kind is stored. It returns an error if the two types are not versions of one kind.
func (c convertor) convertVersion(from, to runtime.Object) (runtime.Object, error) {
	source, target := c.objects.resource(from), c.objects.resource(to)
	obj, ok := from.(api.Object)
	if !ok || source == nil || target == nil || source.Collection == nil || source.Collection != target.Collection {
		return nil, fmt.Errorf("converting a %T to a %T: they are not of one kind", from, to)
	}
	var err error
	if source.StoredAs != nil {
		if obj, err = source.StoredAs.ToStored(obj); err != nil {
			return nil, fmt.Errorf("converting a %T: %w", from, err)
		}
	}
	if target.StoredAs != nil {
		if obj, err = target.StoredAs.FromStored(obj); err != nil {
			return nil, fmt.Errorf("converting a %T: %w", from, err)
		}
	}
	return obj, nil
}

// ConvertToVersion returns in as an object of the group and version that gv accepts for its kind.
// It returns an error if gv accepts none.
func (c convertor) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	kinds := []schema.GroupVersionKind{in.GetObjectKind().GroupVersionKind()}
	if _, ok := in.(*unstructured.Unstructured); !ok {
		var err error
		if kinds, _, err = scheme.Scheme.ObjectKinds(in); err != nil {
			return nil, err
		}
	}
	target, ok := gv.KindForGroupVersionKinds(kinds)
	if !ok {
		return nil, fmt.Errorf("%v is not suitable for converting to %q", kinds, gv)
	}
	out, err := scheme.Scheme.New(target)
	if err != nil {
		return nil, err
	}
	if err := c.Convert(in, out, nil); err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(target)
	return out, nil
}

// ConvertFieldLabel returns label and value unchanged: all versions have the same field selectors.
func (convertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
