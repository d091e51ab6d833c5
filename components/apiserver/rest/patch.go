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

// maxPatchOperations is the maximum number of operations of one JSON patch. More are an error 413.
const maxPatchOperations = 10000

// patch handles a PATCH of an object, or of a subresource such as status if subresource is set. way
// defines the fields that may change. A server-side apply may create the object.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
func (c changer) patch(subresource string, way *api.Update) error {
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
				if err := c.rejectUID(obj); err != nil {
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
	return c.responder().sendChanged(format, out)
}

// patcher applies the patch of one request to an object. It can be applied again after a conflict.
type patcher struct {
	*call
	kindOf  types.PatchType
	body    []byte
	options *metav1.PatchOptions
	strict  strictness
	fields  *fieldmanager.Manager
	// owner and subresource are the resource of fields. owner is nil if fields is for another kind
	// than the resource's.
	owner       *api.Resource
	subresource string

	kind     schema.GroupVersionKind
	empty    func() api.Object
	defaults func(api.Object)
}

// patchType returns the type of the patch from the Content-Type. It returns an error 415 if the
// resource does not support the type; custom resources do not support strategic merge patches.
func (c changer) patchType() (types.PatchType, error) {
	taken := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if c.res.Custom == nil {
		taken = append(taken, string(types.StrategicMergePatchType))
	}
	taken = append(taken, string(types.ApplyYAMLPatchType))
	media, err := negotiate.Patch(c.req, c.res.Custom == nil, taken)
	return types.PatchType(media), err
}

// newPatcher reads the patch and the options of a request, and checks the syntax. It returns a BadRequest error for a
// patch that is not valid JSON or, for an apply, YAML. The caller must set the fields of the patcher that depend on
// the kind.
func (c changer) newPatcher(kindOf types.PatchType) (*patcher, error) {
	p := &patcher{call: c.call, kindOf: kindOf}
	var err error
	if p.body, err = c.bodyDecoder().readBody(); err != nil {
		return nil, err
	}
	if p.options, err = request.PatchOptions(c.query, p.kindOf); err != nil {
		return nil, err
	}
	// Validate the syntax before reading the object, because an invalid patch cannot be recorded in
	// the audit log.
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

// apply returns the object that results from applying the patch to current, with updated managed fields. current is
// nil if the object does not exist, which only happens for server-side apply. Large patches wait for a CPU slot.
func (p *patcher) apply(current api.Object) (api.Object, error) {
	if len(p.body) > slotThreshold {
		done, err := p.cpuSlots.acquire(p.ctx)
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
	return asObject(p.cfg.Fields.Updated(p.writer(manager), current, obj))
}

// writer returns the identity under which the field manager records the fields of this patch.
func (p *patcher) writer(manager string) fieldmanager.By {
	return fieldmanager.By{Resource: p.owner, Subresource: p.subresource, Fields: p.fields, Manager: manager}
}

// plain applies a JSON patch or a JSON merge patch to the JSON of current, and decodes the result. It returns an
// Invalid error if the result is not an object of the kind.
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
			err = unknownConversion(given, p.kind) // the Scale of each group is a separate kind
		}
		if err != nil {
			return nil, invalidPatch(string(patched), err)
		}
	}
	unknown, err := p.bodyDecoder().coerce(obj, p.strict)
	if err == nil {
		err = p.bodyDecoder().readable(obj, p.kind)
	}
	if err != nil {
		return nil, invalidPatch(string(patched), err)
	}
	return obj, p.reportStrict(slices.Concat(strictErrs, more, unknown), string(patched))
}

// withoutVersion returns the errors for a patched built-in object without an apiVersion. Upstream
// decodes it into its internal type, which has no JSON field names, so all fields are unknown.
func withoutVersion(data []byte) (unknown []error, err error) {
	// The Go type is part of the error message.
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

// reportStrict handles unknown and duplicate fields as the field validation mode requires: it adds
// a warning for each, returns an Invalid error, or ignores them. patched is the text of the patched
// object for the error.
func (p *patcher) reportStrict(errs []error, patched string) error {
	if len(errs) == 0 || !p.strict.enabled() {
		return nil
	}
	if p.strict == metav1.FieldValidationWarn {
		p.bodyDecoder().warnStrict(errs)
		return nil
	}
	return invalidPatch(patched, runtime.NewStrictDecodingError(errs))
}

// invalidPatch returns the Invalid error for a patch whose result, patched, cannot be decoded.
func invalidPatch(patched string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), patched, err.Error()),
	})
}

// operation is one operation of a JSON patch. It is only decoded to find duplicate and unknown
// fields.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// patchJSON applies a JSON merge patch or a JSON patch to the document original. strictErrs are the duplicate and
// unknown fields of the patch, if strict is enabled. err is the error response: 400 for a malformed patch, 413 for
// too many operations, 422 for a JSON patch that cannot be applied.
func patchJSON(kind types.PatchType, patch, original []byte, strict strictness) (patched []byte, strictErrs []error, err error) {
	if kind == types.MergePatchType {
		if strict.enabled() {
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
	if strict.enabled() {
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

// limitCopies limits the total size that the copy operations of one JSON patch add to 3 MiB, as in upstream. It runs
// once, because the limit is a global variable of the patch library.
var limitCopies = sync.OnceFunc(func() { jsonpatch.AccumulatedCopySizeLimit = 3 << 20 })

// applyOperations applies a JSON patch to the document original. The patch library panics on some malformed patches,
// for example when one replaces the whole document with nothing; this becomes an error.
func applyOperations(patch jsonpatch.Patch, original []byte) (patched []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			patched, err = nil, fmt.Errorf("malformed patch: %v", v)
		}
	}()
	limitCopies()
	return patch.Apply(original)
}

// strategic applies a strategic merge patch to current and decodes the result. It returns an error response if the
// patch is malformed or the result cannot be decoded.
func (p *patcher) strategic(current api.Object) (api.Object, error) {
	patch := map[string]any{}
	var strictErrs []error
	var err error
	if p.strict.enabled() {
		strictErrs, err = kjson.UnmarshalStrict(p.body, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.body, &patch)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj := p.empty()
	touched := touchedFields(current, obj, patch)
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(touched.project(current))
	if err != nil {
		return nil, fmt.Errorf("patching a %s: %w", p.kind.Kind, err)
	}
	touched.keep(original)
	patched, err := mergeStrategic(original, patch, obj)
	if err != nil {
		return nil, strategicError(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, obj, p.strict.enabled())
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		strictErrs = append(strictErrs, strict.Errors()...)
	} else if err != nil {
		return nil, invalidPatch(fmt.Sprintf("%+v", patch), err)
	}
	if err := p.reportStrict(strictErrs, fmt.Sprintf("%+v", patch)); err != nil {
		return nil, err
	}
	obj = touched.with(current, obj)
	return obj, p.bodyDecoder().readable(obj, p.kind)
}

// mergeStrategic applies a strategic merge patch to the JSON of an object of the type of schema. The patch library
// panics on some malformed patches, such as one in which a merge key is an object; this becomes an error.
func mergeStrategic(original, patch map[string]any, schema api.Object) (patched map[string]any, err error) {
	defer func() {
		if v := recover(); v != nil {
			patched, err = nil, fmt.Errorf("malformed patch: %v", v)
		}
	}()
	return strategicpatch.StrategicMergeMapPatch(original, patch, schema)
}

// strategicError returns the error response for a strategic merge patch that could not be applied
// because of err. The original is an object that the server has stored, so the patch must be wrong:
// the response is 400, or 422 for two specific errors. Upstream responds with 500 to some of them.
func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return apierrors.NewBadRequest(err.Error())
}

// applyConfiguration merges the applied configuration into current (nil if the object does not
// exist) by server-side apply. It returns a conflict if other managers own fields of the
// configuration, unless the options force it.
func (p *patcher) applyConfiguration(current api.Object) (api.Object, error) {
	config, clean, err := p.configuration()
	if err != nil {
		return nil, err
	}
	if p.subresource == "" {
		if err := p.checkSize(config, true); err != nil {
			return nil, err
		}
	}
	if current == nil {
		current = p.empty()
		current.GetObjectKind().SetGroupVersionKind(p.kind)
	}
	if p.res.Custom != nil {
		// The result may share maps with the input.
		current = current.DeepCopyObject().(api.Object)
	}
	force := ptr.Deref(p.options.Force, false)
	applied, err := p.cfg.Fields.Applied(p.writer(p.options.FieldManager), current, config, force)
	if err != nil {
		return nil, err
	}
	if p.strict.enabled() && !clean {
		var again map[string]any
		if err := utilyaml.UnmarshalStrict(p.body, &again); err != nil {
			if p.strict == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
			}
			p.bodyDecoder().warnStrict([]error{err})
		}
	}
	obj, err := asObject(applied)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(p.kind)
	if err := p.bodyDecoder().readable(obj, p.kind); err != nil {
		return nil, fmt.Errorf("failed to convert to unversioned (%s/%s; %v): %w", config.GetNamespace(), config.GetName(), p.kind, err)
	}
	return obj, nil
}

// configuration decodes the applied configuration from YAML or JSON. clean reports whether it certainly contains no
// duplicate fields. It returns a BadRequest error if it cannot be decoded.
func (p *patcher) configuration() (config *unstructured.Unstructured, clean bool, err error) {
	content := map[string]any{}
	if body := bytes.TrimLeft(p.body, " \t\r\n"); len(body) > 0 && body[0] == '{' {
		// JSON is valid YAML but can be decoded much faster as JSON.
		if strictErrs, err := kjson.UnmarshalStrict(body, &content); err == nil && len(strictErrs) == 0 {
			normalizeNumbers(content)
			return &unstructured.Unstructured{Object: content}, true, nil
		}
		content = map[string]any{}
	}
	// Keep integers, because large ones cannot be represented as floats.
	if err := utilyaml.Unmarshal(p.body, &content); err != nil {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return &unstructured.Unstructured{Object: content}, false, nil
}

// normalizeNumbers converts JSON numbers with a zero fraction or an exponent, such as 1.0 and 1e3, to integers in v
// and everything below it, in place, as the YAML decoder does. Numbers above 2⁵³ remain floats. It returns the
// converted value.
func normalizeNumbers(v any) any {
	const exact = 1 << 53
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			switch child.(type) {
			case map[string]any, []any, float64:
				v[name] = normalizeNumbers(child)
			}
		}
	case []any:
		for i, child := range v {
			v[i] = normalizeNumbers(child)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= exact {
			return int64(v)
		}
	}
	return v
}
