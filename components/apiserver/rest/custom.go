package rest

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/internal/api"
)

// warnDeprecated tells the client of a version that ought not to be used any
// more.
func (c *call) warnDeprecated() {
	if text := c.res.Deprecation(); text != "" {
		warning.AddWarning(c.ctx, "", text)
		if c.cfg.Metrics != nil {
			c.cfg.Metrics.Deprecated(c.info, "")
		}
	}
}

// misplaced tells whether a path lacks the namespace of a custom resource;
// nothing is there then.
func (c *call) misplaced() bool {
	return c.res.Custom != nil && bool(c.res.Scope) && c.namespace == "" && c.info.Verb != "list" && c.info.Verb != "watch"
}

// errTerminating: the definition of a custom resource is being deleted.
var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// mayBegin refuses new objects of a definition that is going.
func (c *call) mayBegin(name string) error {
	if c.res.Custom != nil && c.res.Custom.Terminating {
		return apierrors.NewForbidden(c.res.GroupResource(), name, errTerminating)
	}
	return nil
}

// superseded tells that the definition of a custom resource has changed since the
// request began, for as long as admission may take: what was made by the former
// one is not stored.
func (c *call) superseded() error {
	if c.res.Custom != nil && c.cfg.Registry.Lookup(c.res.GVR()) != c.res {
		return errStopped
	}
	return nil
}

// decodeUnstructured reads JSON without a Go type.
func decodeUnstructured(data []byte, into *unstructured.Unstructured, strict strictness) (schema.GroupVersionKind, []error, error) {
	var strictErrs []error
	var err error
	content := map[string]any{}
	if strict.looks() {
		strictErrs, err = kjson.UnmarshalStrict(data, &content)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, &content)
	}
	if err != nil {
		return schema.GroupVersionKind{}, nil, err
	}
	if content == nil {
		content = map[string]any{}
	}
	into.Object = content
	for _, name := range []string{"apiVersion", "kind"} {
		if _, isText := content[name].(string); !isText && content[name] != nil {
			_, err := probe(negotiate.JSON, data, schema.GroupVersionKind{}, schema.GroupVersionKind{}, nil)
			return schema.GroupVersionKind{}, nil, err
		}
	}
	gvk := into.GroupVersionKind()
	if gvk.Kind == "" {
		return gvk, nil, runtime.NewMissingKindErr(string(data))
	}
	return gvk, strictErrs, nil
}

// coerce does what remains to be done to an object without a Go type, and
// returns what is strictly wrong with it.
func (c *call) coerce(into runtime.Object, strict strictness) ([]error, error) {
	obj, ok := into.(*unstructured.Unstructured)
	if !ok || c.res.Custom == nil {
		return nil, nil
	}
	unknown, err := c.res.Custom.Coerce(obj, strict.looks())
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range unknown {
		errs = append(errs, fmt.Errorf("unknown field %q", path))
	}
	return errs, nil
}

// checkCustomKind refuses an object of another kind or version than the
// resource's.
func checkCustomKind(obj *unstructured.Unstructured, want schema.GroupVersionKind) error {
	var errs field.ErrorList
	if kind := obj.GetKind(); kind != want.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, fmt.Sprintf("must be %v", want.Kind)))
	}
	if version := obj.GetAPIVersion(); version != want.GroupVersion().String() {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), version, fmt.Sprintf("must be %v", want.GroupVersion())))
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(obj.GroupVersionKind().GroupKind(), obj.GetName(), errs)
}

// objects is what admission converts and defaults objects with.
func (c *call) objects() admission.ObjectInterfaces {
	if c.res.Custom == nil {
		return c.cfg.Objects
	}
	return customObjects{ObjectInterfaces: c.cfg.Objects, res: c.res.Resource}
}

// customObjects converts and defaults custom resources.
type customObjects struct {
	admission.ObjectInterfaces
	res *api.Resource
}

// GetObjectCreater as admission.ObjectInterfaces.
func (o customObjects) GetObjectCreater() runtime.ObjectCreater {
	return customCreator{o.ObjectInterfaces.GetObjectCreater(), o.res.Group}
}

// GetObjectDefaulter as admission.ObjectInterfaces.
func (o customObjects) GetObjectDefaulter() runtime.ObjectDefaulter {
	return customDefaulter{o.ObjectInterfaces.GetObjectDefaulter(), o.res}
}

// GetObjectConvertor as admission.ObjectInterfaces.
func (o customObjects) GetObjectConvertor() runtime.ObjectConvertor {
	return customConvertor{o.ObjectInterfaces.GetObjectConvertor(), o.res}
}

// GetEquivalentResourceMapper as admission.ObjectInterfaces.
func (o customObjects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return o.res.Custom.Equivalents()
}

type customCreator struct {
	others runtime.ObjectCreater
	group  string
}

// New as runtime.ObjectCreater.
func (o customCreator) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk.Group != o.group {
		return o.others.New(gvk)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetGroupVersionKind(gvk)
	return obj, nil
}

type customDefaulter struct {
	others runtime.ObjectDefaulter
	res    *api.Resource
}

// Default as runtime.ObjectDefaulter.
func (o customDefaulter) Default(in runtime.Object) {
	if obj, ok := in.(*unstructured.Unstructured); ok {
		if obj.GroupVersionKind() == o.res.GVK() {
			o.res.Default(obj)
		}
		return
	}
	o.others.Default(in)
}

type customConvertor struct {
	runtime.ObjectConvertor
	res *api.Resource
}

// ConvertToVersion as runtime.ObjectConvertor.
func (o customConvertor) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	obj, ok := in.(*unstructured.Unstructured)
	if !ok {
		return o.ObjectConvertor.ConvertToVersion(in, gv)
	}
	to, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{obj.GroupVersionKind()})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", obj.GroupVersionKind(), gv)
	}
	return o.res.Custom.Convert(obj, to.Version)
}

// Convert as runtime.ObjectConvertor.
func (o customConvertor) Convert(in, out, context any) error {
	from, ok1 := in.(*unstructured.Unstructured)
	to, ok2 := out.(*unstructured.Unstructured)
	if !ok1 || !ok2 {
		return o.ObjectConvertor.Convert(in, out, context)
	}
	converted, err := o.res.Custom.Convert(from, to.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	u, ok := converted.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("converting a %s: got a %T", from.GetKind(), converted)
	}
	to.Object = u.Object
	if to.GroupVersionKind() != o.res.GVK() {
		return nil
	}
	// What admission added meets the schema as what clients send does.
	_, err = o.res.Custom.Coerce(to, false)
	return err
}
