package rest

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
)

// readBody is the body of a request, kept for a repetition of the request, or the error of reading
// it.
type readBody struct {
	data []byte
	err  error
}

// bodyDecoder reads, decompresses and decodes the body of the request in call.
type bodyDecoder struct{ *call }

// readBody returns the request body, or an error 413 if it exceeds the size limit. It reads the
// body only once and keeps it, because ServeHTTP may repeat the request.
func (c bodyDecoder) readBody() ([]byte, error) {
	if c.body == nil {
		data, err := c.readAll()
		c.body = &readBody{data, err}
		if err == nil {
			c.cfg.Metrics.Body(c.info, len(data))
		}
	}
	return c.body.data, c.body.err
}

// readAll reads the request body, or returns the one that was read ahead. It returns an error 413 if the body is
// larger than the limit, and 400 if it cannot be read completely.
func (c bodyDecoder) readAll() ([]byte, error) {
	limit := c.cfg.MaxBody
	if b, ok := c.req.Body.(*request.Body); ok && int64(len(b.Data)) <= limit {
		if b.Err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the body: %v", b.Err))
		}
		return b.Data, nil
	}
	if c.req.ContentLength > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	if c.req.Body == nil {
		return nil, nil
	}
	var data []byte
	var err error
	if n := c.req.ContentLength; n > 0 {
		data = make([]byte, n)
		_, err = io.ReadFull(c.req.Body, data)
	} else {
		data, err = io.ReadAll(io.LimitReader(c.req.Body, limit+1))
	}
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the body: %v", err))
	}
	if int64(len(data)) > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	return data, nil
}

// strictness is the field validation mode of a request, which defines how unknown and duplicate fields are handled:
// Ignore, Warn (a warning in the response) or Strict (an error).
type strictness string

// fieldValidation returns the strictness for the query parameter fieldValidation. "" means Warn.
func fieldValidation(s string) strictness {
	if s == "" {
		return metav1.FieldValidationWarn
	}
	return strictness(s)
}

// enabled reports whether unknown and duplicate fields are reported in any way.
func (s strictness) enabled() bool { return s != metav1.FieldValidationIgnore }

// decode decodes a request body in the format of its Content-Type into the empty object into, and sets its kind to
// gvk. It rejects a body of another kind; a body without kind and version is accepted for built-in resources. It does
// not set default values. It handles unknown and duplicate fields as strict requires.
func (c bodyDecoder) decode(data []byte, into runtime.Object, gvk schema.GroupVersionKind, strict strictness) error {
	media, err := negotiate.Body(c.req, true)
	if err != nil {
		return err
	}
	return c.decodeAs(media, data, into, gvk, strict)
}

// decodeAs is like decode for a body in the format media. Large bodies wait for a CPU slot, so that they do not delay
// other requests; it returns an error 429 if too many requests of the user wait.
func (c bodyDecoder) decodeAs(media negotiate.Media, data []byte, into runtime.Object, gvk schema.GroupVersionKind, strict strictness) error {
	if len(data) > slotThreshold {
		done, err := c.cpuSlots.acquire(c.ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	var given schema.GroupVersionKind
	var strictErrs []error
	var err error
	switch media {
	case negotiate.Protobuf:
		given, err = decodeProto(data, into)
	case negotiate.YAML:
		given, strictErrs, err = decodeYAML(data, into, strict)
	default:
		given, strictErrs, err = decodeJSON(data, into, strict)
	}
	if given == c.former && !given.Empty() {
		given = gvk
	}
	custom, isCustom := into.(*unstructured.Unstructured)
	if !isCustom && given.Version == "" && given.Group != "" && given.Group != gvk.Group {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v",
			cmp.Or(given.Kind, gvk.Kind), "", gvk.Kind, runtime.NewMissingVersionErr(string(data))))
	}
	if wrong := checkKind(into, given, gvk); wrong != nil {
		err = wrong
	}
	if err == nil && isCustom {
		var more []error
		if more, err = c.coerce(custom, strict); err == nil {
			strictErrs = append(strictErrs, more...)
			if err := checkCustomKind(custom, gvk); err != nil {
				return err
			}
		}
	}
	if err == nil {
		err = c.readable(into, gvk)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	if err == nil && len(strictErrs) > 0 {
		if strict == metav1.FieldValidationWarn {
			c.warnStrict(strictErrs)
		} else {
			err = runtime.NewStrictDecodingError(strictErrs)
		}
	}
	if err != nil {
		if given.Kind == "" {
			if looked, perr := guessKind(media, data, given, gvk, err); !isCustom || looked.Kind == "" {
				given, err = looked, perr
			}
		}
		if given.Kind != "" {
			if given.Version == "" && !isCustom {
				given.Version = gvk.Version
			}
			return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", given.Kind, given.Version, gvk.Kind, err))
		}
		return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", gvk.Kind, err, summary(data)))
	}
	into.GetObjectKind().SetGroupVersionKind(gvk)
	return nil
}

// readable returns an error if obj was decoded but contains values that its kind cannot have, according to
// Resource.Readable. It returns nil for objects of other kinds than the resource's.
func (c bodyDecoder) readable(obj runtime.Object, gvk schema.GroupVersionKind) error {
	if c.res == nil || c.res.Readable == nil || gvk != c.res.GVK() {
		return nil
	}
	if own, ok := obj.(api.Object); ok {
		return c.res.Readable(own)
	}
	return nil
}

// guessKind returns the kind and version to name in the error for a body that could not be decoded
// because of err. given is what the decoder found. A body without a kind gets the expected kind
// want. If the body is not an object, guessKind returns another error instead of err.
func guessKind(media negotiate.Media, data []byte, given, want schema.GroupVersionKind, err error) (schema.GroupVersionKind, error) {
	switch media {
	case negotiate.Protobuf:
		return given, err
	case negotiate.YAML:
		converted, yerr := yaml.YAMLToJSON(data)
		if yerr != nil {
			return given, err
		}
		data = converted
	}
	// The Go type is part of the error message.
	var object struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if perr := json.Unmarshal(data, &object); perr != nil {
		return given, fmt.Errorf("couldn't get version/kind; json parse error: %w", perr)
	}
	if object.Kind != "" {
		return given, err
	}
	given.Kind = want.Kind
	if given.Version == "" {
		given.Group, given.Version = want.Group, want.Version
	}
	return given, err
}

// checkKind returns an error if the kind and version found in a body (given) are not the expected ones (want). A body
// may omit either or both, except that a custom resource must name its version. The messages are those of upstream.
func checkKind(into runtime.Object, given, want schema.GroupVersionKind) error {
	if given == want || given.Version == "" && given.Kind == "" {
		return nil
	}
	_, custom := into.(*unstructured.Unstructured) // see checkCustomKind
	full := given
	if full.Kind == "" {
		full.Kind = want.Kind
	}
	if full.Version == "" && !custom {
		full.Group, full.Version = want.Group, want.Version
	}
	if !custom && full != want {
		if err := checkFormer(full, want); err != nil {
			return err
		}
	}
	if full.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", full.GroupVersion(), want.GroupVersion()))
	}
	return nil
}

// checkFormer returns an error unless given is a kind that client-go's scheme contains and that has the same name as
// want. It is called for objects whose kind or version differs from that of the request.
func checkFormer(given, want schema.GroupVersionKind) error {
	if given.Kind == "" {
		given.Kind = want.Kind
	}
	switch {
	case !scheme.Scheme.Recognizes(given):
		// The name of upstream's scheme is part of the message.
		return fmt.Errorf("no kind %q is registered for version %q in scheme %q", given.Kind, given.GroupVersion(), "pkg/runtime/scheme.go:111")
	case given.Kind != want.Kind:
		return unknownConversion(given, want)
	}
	return nil
}

// unknownConversion returns upstream's error for a body of the kind given where the kind want is
// expected.
func unknownConversion(given, want schema.GroupVersionKind) error {
	return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", given.Version, given.Kind, internalPackage(want.Group), want.Kind)
}

// internalPackage returns the name of upstream's package of a group's internal types, which occurs
// in its error messages.
func internalPackage(group string) string {
	switch group {
	case "", "events.k8s.io":
		return "core"
	}
	name, _, _ := strings.Cut(group, ".")
	return name
}

// decodeProto decodes a Protobuf body with its envelope into the object into. It returns the kind that the envelope
// contains. It returns errors with the same text as upstream's for malformed bodies and for types without a protobuf
// form.
func decodeProto(data []byte, into runtime.Object) (schema.GroupVersionKind, error) {
	var gvk schema.GroupVersionKind
	m, ok := into.(interface{ Unmarshal([]byte) error })
	if !ok {
		return gvk, fmt.Errorf("object %T does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message", into)
	}
	switch {
	case len(data) == 0:
		return gvk, errors.New("empty data")
	case !bytes.HasPrefix(data, []byte(wire.Magic)):
		return gvk, fmt.Errorf("provided data does not appear to be a protobuf message, expected prefix %v", []byte(wire.Magic))
	case len(data) == len(wire.Magic):
		return gvk, errors.New("empty body")
	}
	envelope, err := wire.ParseEnvelope(data)
	if err != nil {
		// The library that upstream uses returns a more detailed error.
		if derr := new(runtime.Unknown).Unmarshal(data[len(wire.Magic):]); derr != nil {
			err = derr
		}
		return gvk, err
	}
	gvk = schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind)
	// This is the only kind with a recursive type.
	if _, recursive := into.(*apiextensionsv1.CustomResourceDefinition); recursive && wire.DeeperThan(envelope.Raw, maxDepth) {
		return gvk, errors.New("exceeded max depth")
	}
	if err := m.Unmarshal(envelope.Raw); err != nil {
		return gvk, err
	}
	return gvk, nil
}

// maxDepth is the maximum nesting depth of protobuf messages of recursive types. It is the same as
// that of Go's JSON decoder.
const maxDepth = 10000

// decodeYAML decodes a YAML body into the object into, by converting it to JSON. It returns the kind that the body
// contains and, if strict is enabled, the errors about unknown and duplicate fields.
func decodeYAML(data []byte, into runtime.Object, strict strictness) (schema.GroupVersionKind, []error, error) {
	converted, err := yaml.YAMLToJSON(data)
	if err != nil {
		return schema.GroupVersionKind{}, nil, err
	}
	var strictErrs []error
	if strict.enabled() {
		// The conversion drops duplicate fields.
		if _, err := yaml.YAMLToJSONStrict(data); err != nil {
			strictErrs = append(strictErrs, err)
		}
	}
	gvk, more, err := decodeJSON(converted, into, strict)
	return gvk, append(strictErrs, more...), err
}

// decodeJSON decodes a JSON body into the object into. It returns the kind that the body contains and, if strict is
// enabled, the errors about unknown and duplicate fields. The kind is also returned with most errors.
func decodeJSON(data []byte, into runtime.Object, strict strictness) (schema.GroupVersionKind, []error, error) {
	if u, ok := into.(*unstructured.Unstructured); ok {
		return decodeUnstructured(data, u, strict)
	}
	// Use the kind in the body for error messages even if the rest of the body does not match the
	// type.
	var strictErrs []error
	var err error
	if strict.enabled() {
		strictErrs, err = kjson.UnmarshalStrict(data, into)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	}
	meta, _ := into.GetObjectKind().(*metav1.TypeMeta)
	if err != nil {
		meta = &metav1.TypeMeta{}
		if json.Unmarshal(data, meta) != nil {
			return schema.GroupVersionKind{}, nil, err
		}
	}
	if meta == nil {
		return into.GetObjectKind().GroupVersionKind(), strictErrs, nil
	}
	if _, wrong := schema.ParseGroupVersion(meta.APIVersion); wrong != nil {
		return schema.GroupVersionKind{}, nil, wrong
	}
	return meta.GroupVersionKind(), strictErrs, err
}

// warnStrict adds a Warning header for each unknown or duplicate field to the response.
func (c bodyDecoder) warnStrict(errs []error) {
	for _, err := range errs {
		// A YAML error may contain several lines.
		text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
		text, several := strings.CutPrefix(text, "yaml: unmarshal errors:\n")
		if !several {
			warning.AddWarning(c.ctx, "", err.Error())
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			warning.AddWarning(c.ctx, "", strings.TrimSpace(line))
		}
	}
}

// summary returns the beginning of a request body for an error message: as text if it starts like a
// JSON object, otherwise in hexadecimal.
func summary(data []byte) string {
	const most = 30
	if len(data) == 0 {
		return "<empty>"
	}
	shown, rest := data, ""
	if len(data) > most {
		shown, rest = data[:most], " ..."
	}
	if data[0] == '{' {
		return string(shown) + rest
	}
	return hex.EncodeToString(shown) + rest
}

// dryRun reports whether the request's dryRun options include All.
func dryRun(options []string) bool {
	for _, s := range options {
		if strings.EqualFold(s, metav1.DryRunAll) {
			return true
		}
	}
	return false
}

// parseRevision parses the resourceVersion of an object in a request. It returns zero for an empty one and for "0",
// and a BadRequest error for an invalid one.
func parseRevision(s string) (int64, error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: %v", s, err))
	}
	return int64(n), nil
}
