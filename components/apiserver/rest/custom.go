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

// warnDeprecated adds a warning to the response, and counts the request in the metrics, if the requested API version
// of the resource is deprecated.
func (c *call) warnDeprecated() {
	if text := c.res.Deprecation(); text != "" {
		warning.AddWarning(c.ctx, "", text)
		if c.cfg.Metrics != nil {
			c.cfg.Metrics.Deprecated(c.info, "")
		}
	}
}

// lacksNamespace reports whether a request for a namespaced custom resource has no namespace in its
// path, except for lists and watches of all namespaces. Such a path does not exist.
func (c *call) lacksNamespace() bool {
	return c.res.Custom != nil && bool(c.res.Scope) && c.namespace == "" && c.info.Verb != "list" && c.info.Verb != "watch"
}

// errTerminating is the error for creating a custom resource while its definition is being deleted.
var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// checkTerminating returns a Forbidden error if the resource is a custom resource whose definition is being deleted.
// name is the name of the new object.
func (c *call) checkTerminating(name string) error {
	if c.res.Custom != nil && c.res.Custom.Terminating {
		return apierrors.NewForbidden(c.res.GroupResource(), name, errTerminating)
	}
	return nil
}

// decodeUnstructured decodes JSON into an unstructured object. It returns the kind in the body and, if strict is
// enabled, an error for each duplicate field; coerce finds unknown fields later. It returns an error if the body is
// not an object with a kind.
func decodeUnstructured(data []byte, into *unstructured.Unstructured, strict strictness) (schema.GroupVersionKind, []error, error) {
	var strictErrs []error
	var err error
	content := map[string]any{}
	if strict.enabled() {
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
			_, err := guessKind(negotiate.JSON, data, schema.GroupVersionKind{}, schema.GroupVersionKind{}, nil)
			return schema.GroupVersionKind{}, nil, err
		}
	}
	gvk := into.GroupVersionKind()
	if gvk.Kind == "" {
		return gvk, nil, runtime.NewMissingKindErr(string(data))
	}
	return gvk, strictErrs, nil
}

// coerce converts the values of a decoded custom resource to the types of its schema and prunes unknown fields. It
// returns an error for each unknown field if strict is enabled, and a second error if the metadata is malformed. It
// does nothing for built-in resources.
func (c bodyDecoder) coerce(into runtime.Object, strict strictness) ([]error, error) {
	obj, ok := into.(*unstructured.Unstructured)
	if !ok || c.res.Custom == nil {
		return nil, nil
	}
	unknown, err := c.res.Custom.Coerce(obj, strict.enabled())
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range unknown {
		errs = append(errs, fmt.Errorf("unknown field %q", path))
	}
	return errs, nil
}

// checkCustomKind returns an Invalid error if the kind or apiVersion of a custom resource in a
// request body is not that of the requested resource.
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
	return newInvalid(obj.GroupVersionKind().GroupKind(), obj.GetName(), errs)
}

// objects returns the functions with which admission creates, converts and defaults objects.
func (c admitter) objects() admission.ObjectInterfaces {
	if c.res.Custom == nil {
		return c.cfg.Objects
	}
	return customObjects{ObjectInterfaces: c.cfg.Objects, res: c.res.Resource}
}

// customObjects creates, converts and defaults objects for the webhooks and policies that are
// called for a request for a custom resource. Objects of other kinds are passed to the embedded
// interfaces.
type customObjects struct {
	admission.ObjectInterfaces
	res *api.Resource
}

// GetObjectCreater implements admission.ObjectInterfaces. The result creates unstructured objects
// for the group of the custom resource.
func (o customObjects) GetObjectCreater() runtime.ObjectCreater {
	return customCreator{o.ObjectInterfaces.GetObjectCreater(), o.res.Group}
}

// GetObjectDefaulter implements admission.ObjectInterfaces. The result sets the defaults of the
// custom resource's schema.
func (o customObjects) GetObjectDefaulter() runtime.ObjectDefaulter {
	return customDefaulter{o.ObjectInterfaces.GetObjectDefaulter(), o.res}
}

// GetObjectConvertor implements admission.ObjectInterfaces. The result converts between the
// versions of the custom resource, with its conversion webhook if it has one.
func (o customObjects) GetObjectConvertor() runtime.ObjectConvertor {
	return customConvertor{o.ObjectInterfaces.GetObjectConvertor(), o.res}
}

// GetEquivalentResourceMapper implements admission.ObjectInterfaces. The result contains the
// versions of the custom resource, so that a webhook for one version is also called for the others.
func (o customObjects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return o.res.Custom.Equivalents()
}

// customCreator creates empty custom resources, and objects of other groups with the wrapped
// creator. It is a part of customObjects.
type customCreator struct {
	others runtime.ObjectCreater
	group  string
}

// New returns an empty unstructured object for a kind of the custom resource's group, and asks the
// wrapped creator for other groups.
func (o customCreator) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk.Group != o.group {
		return o.others.New(gvk)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetGroupVersionKind(gvk)
	return obj, nil
}

// customDefaulter sets default values of custom resources, and of other objects with the wrapped
// defaulter. It is a part of customObjects.
type customDefaulter struct {
	others runtime.ObjectDefaulter
	res    *api.Resource
}

// Default sets the defaults of the schema if in is a custom resource of this kind and version. It
// does not change other custom resources.
func (o customDefaulter) Default(in runtime.Object) {
	if obj, ok := in.(*unstructured.Unstructured); ok {
		if obj.GroupVersionKind() == o.res.GVK() {
			o.res.Default(obj)
		}
		return
	}
	o.others.Default(in)
}

// customConvertor converts custom resources, and other objects with the wrapped convertor. It is a
// part of customObjects.
type customConvertor struct {
	runtime.ObjectConvertor
	res *api.Resource
}

// ConvertToVersion converts a custom resource to a version that gv accepts, or returns an error if gv accepts none.
// It passes other objects to the wrapped convertor.
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

// Convert converts the custom resource in to the version of out and stores the result in out. If
// out has the version of the request, it is also checked against the schema. Other objects are
// passed to the wrapped convertor.
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
	// Changes by admission must match the schema like those of clients.
	_, err = o.res.Custom.Coerce(to, false)
	return err
}
