package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
)

// maxPatchOperations bounds the work of one JSON patch.
const maxPatchOperations = 10000

// patch answers a PATCH of an object, or of a view of it.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
func (c *call) patch(subresource string, way *api.Update) error {
	kindOf, err := c.patchType()
	if err != nil {
		return err
	}
	format, err := c.format()
	if err != nil {
		return err
	}
	p, err := c.newPatcher(kindOf)
	if err != nil {
		return err
	}
	if p.fields, err = c.cfg.Fields.For(c.res.Resource, subresource); err != nil {
		return err
	}
	p.kind = c.res.GVK()
	p.empty = c.res.New
	p.defaults = c.res.Default
	p.owner, p.subresource = c.res.Resource, subresource
	out, err := c.change(change{
		way:     way,
		create:  p.kindOf == types.ApplyYAMLPatchType && (subresource == "" || way.ApplyCreates || c.mayCreateBy(subresource)),
		options: updateOptionsOf(p.options),
		make: func(_ context.Context, current api.Object) (api.Object, error) {
			obj, err := p.apply(current)
			if err != nil {
				return nil, err
			}
			if current == nil {
				if err := c.noUID(obj); err != nil {
					return nil, err
				}
			}
			if err := c.checkNamespace(obj); err != nil {
				return nil, err
			}
			return obj, c.checkName(obj)
		},
	})
	if err != nil {
		return err
	}
	return c.sendChanged(format, out)
}

// patcher applies one patch to objects of one kind.
type patcher struct {
	*call
	kindOf  types.PatchType
	body    []byte
	options *metav1.PatchOptions
	strict  strictness
	fields  *fieldmanager.Manager
	// owner and subresource are what fields is for; nil when it is for another
	// kind than the resource's.
	owner       *api.Resource
	subresource string

	kind     schema.GroupVersionKind
	empty    func() api.Object
	defaults func(api.Object)
}

// patchType tells of which type the patch of a request is.
func (c *call) patchType() (types.PatchType, error) {
	taken := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if c.res.Custom == nil {
		taken = append(taken, string(types.StrategicMergePatchType))
	}
	taken = append(taken, string(types.ApplyYAMLPatchType))
	media, err := negotiate.Patch(c.req, c.res.Custom == nil, taken)
	return types.PatchType(media), err
}

// newPatcher reads the patch of a request.
func (c *call) newPatcher(kindOf types.PatchType) (*patcher, error) {
	p := &patcher{call: c, kindOf: kindOf}
	var err error
	if p.body, err = c.readBody(); err != nil {
		return nil, err
	}
	if p.options, err = request.PatchOptions(c.query, p.kindOf); err != nil {
		return nil, err
	}
	// Before anybody looks for the object: what is no patch at all would not
	// even be fit for the audit log.
	if !json.Valid(p.body) {
		if p.kindOf != types.ApplyYAMLPatchType {
			return nil, apierrors.NewBadRequest("invalid JSON patch")
		}
		if _, err := utilyaml.ToJSON(p.body); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
		}
	}
	p.strict = fieldValidation(p.options.FieldValidation)
	return p, nil
}

// apply returns current as patched; current is nil when there is none, for
// configurations that are applied alone.
func (p *patcher) apply(current api.Object) (api.Object, error) {
	if len(p.body) > largeWork {
		done, err := p.turns.take(p.ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	if p.kindOf == types.ApplyYAMLPatchType {
		return p.applyConfiguration(current)
	}
	var obj api.Object
	var err error
	if p.kindOf == types.StrategicMergePatchType {
		obj, err = p.strategic(current)
	} else {
		obj, err = p.plain(current)
	}
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(p.kind)
	p.defaults(obj)
	manager := fieldmanager.Name(p.options.FieldManager, p.req.UserAgent())
	return asObject(p.cfg.Fields.Updated(p.by(manager), current, obj))
}

// by is the one of that name who patches.
func (p *patcher) by(manager string) fieldmanager.By {
	return fieldmanager.By{Resource: p.owner, Subresource: p.subresource, Fields: p.fields, Manager: manager}
}

// plain applies a JSON patch or a JSON merge patch.
func (p *patcher) plain(current api.Object) (api.Object, error) {
	original, err := encode(negotiate.Format{}, current)
	if err != nil {
		return nil, err
	}
	patched, strictErrs, err := patchJSON(p.kindOf, p.body, original, p.strict)
	if err != nil {
		return nil, err
	}
	obj := p.empty()
	given, more, err := decodeJSON(patched, obj, p.strict)
	custom, isCustom := obj.(*unstructured.Unstructured)
	if !isCustom && (err != nil || given.Version == "") {
		if unknown, werr := withoutVersion(patched); werr != nil || given.Version == "" {
			obj, more, err = p.empty(), unknown, werr
		}
	}
	if err != nil {
		known := given.Version == "" || given.Kind == "" || given == p.kind || scheme.Scheme.Recognizes(given)
		if !isCustom && !known {
			err = checkFormer(given, p.kind)
		}
		return nil, invalidPatch(string(patched), err)
	}
	switch {
	case isCustom && p.subresource == "":
		if err := checkCustomKind(custom, p.kind); err != nil {
			return nil, err
		}
	case !isCustom && given != p.kind && given.Version != "":
		err := checkFormer(given, p.kind)
		if err == nil && p.kind.Kind == scaleKind.Kind && given.Group != p.kind.Group {
			err = unknownConversion(given, p.kind) // each group's scales are a kind of their own
		}
		if err != nil {
			return nil, invalidPatch(string(patched), err)
		}
	}
	unknown, err := p.coerce(obj, p.strict)
	if err == nil {
		err = p.readable(obj, p.kind)
	}
	if err != nil {
		return nil, invalidPatch(string(patched), err)
	}
	return obj, p.judge(slices.Concat(strictErrs, more, unknown), string(patched))
}

// withoutVersion reads a built-in object that does not say of which version it
// is. Upstream reads it as its internal type, in which no field has the name
// that is given here.
func withoutVersion(data []byte) (unknown []error, err error) {
	// The names of the fields are part of the text.
	var named struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if err := json.Unmarshal(data, &named); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	if _, err := schema.ParseGroupVersion(named.APIVersion); err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(data, &named)
}

// judge tells of strict errors, or refuses the patch for them.
func (p *patcher) judge(errs []error, patched string) error {
	if len(errs) == 0 || !p.strict.looks() {
		return nil
	}
	if p.strict == metav1.FieldValidationWarn {
		p.warnStrict(errs)
		return nil
	}
	return invalidPatch(patched, runtime.NewStrictDecodingError(errs))
}

func invalidPatch(patched string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), patched, err.Error()),
	})
}

// operation is one of a JSON patch, for finding fields that are there twice.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func patchJSON(kind types.PatchType, patch, original []byte, strict strictness) (patched []byte, strictErrs []error, err error) {
	if kind == types.MergePatchType {
		if strict.looks() {
			v := map[string]any{}
			if strictErrs, err = kjson.UnmarshalStrict(patch, &v); err != nil {
				return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
			}
		}
		patched, err = jsonpatch.MergePatch(original, patch)
		if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
		return patched, strictErrs, err
	}
	if strict.looks() {
		var v []operation
		if strictErrs, err = kjson.UnmarshalStrict(patch, &v); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for i, e := range strictErrs {
			strictErrs[i] = fmt.Errorf("json patch %w", e)
		}
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(decoded) > maxPatchOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(decoded)))
	}
	patched, err = applyOperations(decoded, original)
	if err != nil {
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return patched, strictErrs, nil
}

// limitCopies bounds what the copy operations of one JSON patch add, as
// upstream. The library knows one bound for the whole process.
var limitCopies = sync.OnceFunc(func() { jsonpatch.AccumulatedCopySizeLimit = 3 << 20 })

// applyOperations applies a JSON patch. The library panics on some that are
// malformed, such as one that replaces the whole document by nothing.
func applyOperations(patch jsonpatch.Patch, original []byte) (patched []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			patched, err = nil, fmt.Errorf("malformed patch: %v", v)
		}
	}()
	limitCopies()
	return patch.Apply(original)
}

// strategic applies a strategic merge patch.
func (p *patcher) strategic(current api.Object) (api.Object, error) {
	patch := map[string]any{}
	var strictErrs []error
	var err error
	if p.strict.looks() {
		strictErrs, err = kjson.UnmarshalStrict(p.body, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.body, &patch)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj := p.empty()
	touched := touchedFields(current, obj, patch)
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(touched.of(current))
	if err != nil {
		return nil, fmt.Errorf("patching a %s: %w", p.kind.Kind, err)
	}
	touched.keep(original)
	patched, err := strategicpatch.StrategicMergeMapPatch(original, patch, obj)
	if err != nil {
		return nil, strategicError(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, obj, p.strict.looks())
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		strictErrs = append(strictErrs, strict.Errors()...)
	} else if err != nil {
		return nil, invalidPatch(fmt.Sprintf("%+v", patch), err)
	}
	if err := p.judge(strictErrs, fmt.Sprintf("%+v", patch)); err != nil {
		return nil, err
	}
	obj = touched.with(current, obj)
	return obj, p.readable(obj, p.kind)
}

func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists):
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return err
}

// applyConfiguration is server-side apply.
func (p *patcher) applyConfiguration(current api.Object) (api.Object, error) {
	config, clean, err := p.configuration()
	if err != nil {
		return nil, err
	}
	if current == nil {
		current = p.empty()
		current.GetObjectKind().SetGroupVersionKind(p.kind)
	}
	if p.res.Custom != nil {
		// What comes out may share maps with what goes in.
		current = current.DeepCopyObject().(api.Object)
	}
	force := ptr.Deref(p.options.Force, false)
	applied, err := p.cfg.Fields.Applied(p.by(p.options.FieldManager), current, config, force)
	if err != nil {
		return nil, err
	}
	if p.strict.looks() && !clean {
		var again map[string]any
		if err := utilyaml.UnmarshalStrict(p.body, &again); err != nil {
			if p.strict == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
			}
			p.warnStrict([]error{err})
		}
	}
	obj, err := asObject(applied)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(p.kind)
	if err := p.readable(obj, p.kind); err != nil {
		return nil, fmt.Errorf("failed to convert to unversioned (%s/%s; %v): %w", config.GetNamespace(), config.GetName(), p.kind, err)
	}
	return obj, nil
}

// configuration reads what is applied; clean when nothing in it is there twice.
func (p *patcher) configuration() (config *unstructured.Unstructured, clean bool, err error) {
	content := map[string]any{}
	if body := bytes.TrimLeft(p.body, " \t\r\n"); len(body) > 0 && body[0] == '{' {
		// JSON is YAML, too, but read in a fraction of the time.
		if strictErrs, err := kjson.UnmarshalStrict(body, &content); err == nil && len(strictErrs) == 0 {
			wholeNumbers(content)
			return &unstructured.Unstructured{Object: content}, true, nil
		}
		content = map[string]any{}
	}
	// Whole numbers stay such, for as floats large ones would be others.
	if err := utilyaml.Unmarshal(p.body, &content); err != nil {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return &unstructured.Unstructured{Object: content}, false, nil
}

// wholeNumbers makes integers of numbers that are written with a fraction of
// zero or an exponent, as reading them as YAML does.
func wholeNumbers(v any) any {
	const exact = 1 << 53
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			switch child.(type) {
			case map[string]any, []any, float64:
				v[name] = wholeNumbers(child)
			}
		}
	case []any:
		for i, child := range v {
			v[i] = wholeNumbers(child)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= exact {
			return int64(v)
		}
	}
	return v
}
