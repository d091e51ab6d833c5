// Package objects tells admission plugins of k8s.io/apiserver what the API
// server knows of objects. Those plugins were made for a server that has an
// internal version of every kind: here the published version is the internal
// one, so that most conversions copy nothing but the outermost struct.
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

// New returns what admission creates, converts and defaults the objects of
// built-in kinds with. It is safe for several goroutines.
func New(reg *registry.Registry) admission.ObjectInterfaces { return objects{reg} }

type objects struct{ registry *registry.Registry }

// GetObjectCreater as admission.ObjectInterfaces.
func (objects) GetObjectCreater() runtime.ObjectCreater { return scheme.Scheme }

// GetObjectTyper as admission.ObjectInterfaces.
func (objects) GetObjectTyper() runtime.ObjectTyper { return scheme.Scheme }

// GetObjectDefaulter as admission.ObjectInterfaces.
func (o objects) GetObjectDefaulter() runtime.ObjectDefaulter { return o }

// GetObjectConvertor as admission.ObjectInterfaces.
func (o objects) GetObjectConvertor() runtime.ObjectConvertor { return convertor{o} }

// GetEquivalentResourceMapper as admission.ObjectInterfaces.
func (o objects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return equivalents(o)
}

// resource is that of a built-in object, or nil.
func (o objects) resource(obj runtime.Object) *registry.Resource {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil || len(kinds) == 0 {
		return nil
	}
	return o.registry.Kind(kinds[0])
}

// Default as runtime.ObjectDefaulter.
func (o objects) Default(in runtime.Object) {
	obj, ok := in.(api.Object)
	if !ok {
		return
	}
	if r := o.resource(obj); r != nil && r.Default != nil {
		r.Default(obj)
	}
}

// equivalents finds the resources that show the same objects.
type equivalents struct{ registry *registry.Registry }

// EquivalentResourcesFor as runtime.EquivalentResourceMapper.
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

// KindFor as runtime.EquivalentResourceMapper.
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

// convertor converts between the versions of a kind, and from what has no Go
// type. What it returns may share parts with what it was given.
type convertor struct{ objects objects }

// Convert as runtime.ObjectConvertor. The kind that out says it is of stays.
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
	if copied(from, to) {
		return nil
	}
	if u, ok := from.(*unstructured.Unstructured); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, to); err != nil {
			return fmt.Errorf("converting a %s: %w", u.GetKind(), err)
		}
		return nil
	}
	converted, err := c.version(from, to)
	if err != nil {
		return err
	}
	if !copied(converted, to) {
		return fmt.Errorf("converting a %T to a %T: got a %T", from, to, converted)
	}
	return nil
}

// copied assigns what from points to, if they are of one type.
func copied(from, to runtime.Object) bool {
	f, t := reflect.ValueOf(from), reflect.ValueOf(to)
	if f.Type() != t.Type() || f.Kind() != reflect.Pointer {
		return false
	}
	t.Elem().Set(f.Elem())
	return true
}

// version converts by the form in which the objects are stored.
func (c convertor) version(from, to runtime.Object) (runtime.Object, error) {
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

// ConvertToVersion as runtime.ObjectConvertor.
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

// ConvertFieldLabel as runtime.ObjectConvertor.
func (convertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
