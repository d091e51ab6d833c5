// Package negotiate determines the format of a response by the Accept header, and that of a request
// body by the Content-Type header.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
package negotiate

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Media is the encoding of a request or response body.
type Media uint8

// The encodings of API objects in request and response bodies.
const (
	JSON Media = iota
	YAML
	Protobuf
)

// Media types of the encodings, in the order in which errors list them.
const (
	TypeJSON     = "application/json"
	TypeYAML     = "application/yaml"
	TypeProtobuf = "application/vnd.kubernetes.protobuf"
)

// String returns the media type, such as "application/json".
func (m Media) String() string {
	switch m {
	case YAML:
		return TypeYAML
	case Protobuf:
		return TypeProtobuf
	}
	return TypeJSON
}

// As is the representation of objects in a response.
type As uint8

// The representations: the object itself, a table with a row per object, the metadata of an object or
// of the items of a list, and aggregated discovery.
const (
	Object As = iota
	Table
	Metadata
	MetadataList
	// Aggregated is the discovery of all groups in a single document.
	Aggregated
)

// Format is the format of a response as negotiated with the Accept header: encoding and
// representation.
type Format struct {
	Media Media
	As    As
	// Version is the API version of a table or of partial metadata ("v1" or "v1beta1"), or of aggregated discovery
	// ("v2"). Otherwise it is "v1".
	Version string
	// Pretty requests indented JSON.
	Pretty bool
	// Profile is the media type parameter profile, which clients of aggregated discovery send.
	Profile string
}

// Endpoint describes the formats that an endpoint supports.
type Endpoint struct {
	// Protobuf is set if the objects have a protobuf encoding.
	Protobuf bool
	// Metadata is set if the objects have metadata, so that the client may request tables and partial
	// metadata. Tableless excludes tables.
	Metadata, Tableless bool
	// Aggregated means that aggregated discovery is supported.
	Aggregated bool
	// Watch means that the response is a stream of events.
	Watch bool
	// Routed means a built-in resource, Streams a list of a built-in resource that supports watch.
	// They only affect error messages.
	Routed, Streams bool
}

// cacheKey identifies a cached result. Clients send the same Accept header with each request, so
// results are cached, up to a limit.
type cacheKey struct {
	header   string
	endpoint Endpoint
}

// Negotiator determines response formats from Accept headers and caches the results. The zero value
// is ready to use. It is safe for concurrent use.
type Negotiator struct {
	mu    sync.RWMutex
	known map[cacheKey]Format
}

const maxKnown = 512

// Response returns the format of the response to req: the preferred one in the Accept header that the endpoint
// supports, JSON if there is no header. It returns an error 406 if there is none.
func (n *Negotiator) Response(req *http.Request, endpoint Endpoint) (Format, error) {
	key := cacheKey{req.Header.Get("Accept"), endpoint}
	n.mu.RLock()
	f, ok := n.known[key]
	n.mu.RUnlock()
	if !ok {
		if f, ok = accept(key.header, endpoint); !ok {
			return Format{}, notAcceptable(key.header, endpoint)
		}
		if len(key.header) < 1024 {
			n.mu.Lock()
			if n.known == nil || len(n.known) >= maxKnown {
				n.known = map[cacheKey]Format{}
			}
			n.known[key] = f
			n.mu.Unlock()
		}
	}
	f.Pretty = f.Pretty || pretty(req)
	return f, nil
}

// accept returns the first format in an Accept header, in the order of preference, that the endpoint supports. An
// empty header means JSON. It returns false if there is none.
func accept(header string, endpoint Endpoint) (Format, bool) {
	if header == "" {
		return Format{Version: "v1"}, true
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		var medias []Media
		switch {
		case clause.SubType == "json" && clause.Type == "application":
			medias = []Media{JSON}
		case clause.SubType == "yaml" && clause.Type == "application":
			medias = []Media{YAML}
		case clause.SubType == "vnd.kubernetes.protobuf" && clause.Type == "application":
			medias = []Media{Protobuf}
		case clause.SubType == "*":
			medias = []Media{JSON, YAML, Protobuf}
		}
		for _, media := range medias {
			if f, ok := offer(media, clause.Params, endpoint); ok {
				return f, true
			}
		}
	}
	return Format{}, false
}

// offer returns the format for a media type with parameters such as as=Table. It returns false if the endpoint does
// not support it or a parameter is unknown.
func offer(media Media, params map[string]string, endpoint Endpoint) (Format, bool) {
	f := Format{Media: media, Version: "v1"}
	switch {
	case media == Protobuf && !endpoint.Protobuf && !strings.HasPrefix(params["as"], "PartialObjectMetadata"),
		media == YAML && endpoint.Watch:
		return f, false
	}
	if s := params["stream"]; s != "" && s != "watch" {
		return f, false
	}
	if params["sv"] != "" {
		return f, false
	}
	f.Pretty = params["pretty"] == "1"
	f.Profile = params["profile"]
	_, as := params["as"]
	_, group := params["g"]
	_, version := params["v"]
	if !as && !group && !version {
		return f, true
	}
	switch g, v := params["g"], params["v"]; {
	case g == metav1.GroupName && (v == "v1" || v == "v1beta1") && endpoint.Metadata:
		f.Version = v
		switch params["as"] {
		case "Table":
			f.As = Table
			return f, media != Protobuf && !endpoint.Tableless
		case "PartialObjectMetadata":
			f.As = Metadata
			return f, true
		case "PartialObjectMetadataList":
			f.As = MetadataList
			return f, true
		}
	case g == "apidiscovery.k8s.io" && v == "v2" && endpoint.Aggregated:
		f.Version, f.As = v, Aggregated
		return f, params["as"] == "APIGroupDiscoveryList"
	}
	return f, false
}

// pretty reports whether a JSON response should be indented: as the query parameter pretty specifies, or without it,
// for browsers, curl and wget.
func pretty(req *http.Request) bool {
	if strings.Contains(req.URL.RawQuery, "pretty") {
		if s := req.URL.Query().Get("pretty"); s != "" {
			yes, _ := strconv.ParseBool(s)
			return yes
		}
	}
	agent := req.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// Body returns the encoding of the request body according to its Content-Type; JSON if there is
// none. protobuf is set if the endpoint accepts protobuf. It returns an error 415 for other types.
func Body(req *http.Request, protobuf bool) (Media, error) {
	header := req.Header.Get("Content-Type")
	switch header {
	case "", TypeJSON:
		return JSON, nil
	case TypeProtobuf:
		if protobuf {
			return Protobuf, nil
		}
	}
	if media, _, err := mime.ParseMediaType(header); err == nil {
		switch {
		case media == TypeJSON:
			return JSON, nil
		case media == TypeYAML:
			return YAML, nil
		case media == TypeProtobuf && protobuf:
			return Protobuf, nil
		}
	}
	return 0, unsupported(supported(Endpoint{Protobuf: protobuf}))
}

// supported returns the media types that an endpoint supports, for errors. Those of watches have the parameter
// stream=watch.
func supported(e Endpoint) []string {
	out := []string{TypeJSON}
	if !e.Watch {
		out = append(out, TypeYAML)
	}
	if e.Protobuf {
		out = append(out, TypeProtobuf)
	}
	if e.Watch {
		for i := range out {
			out[i] += ";stream=watch"
		}
	}
	return out
}

// statusError is an error that contains the Status to send to the client. It implements
// apierrors.APIStatus.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

// notAcceptable returns upstream's error 406 for an Accept header that contains no format that the
// endpoint supports.
func notAcceptable(header string, e Endpoint) error {
	types := []string{TypeJSON, TypeYAML, TypeProtobuf}
	if e.Routed && !Named(header, types...) {
		// In upstream the router rejects the request before it evaluates parameters.
		if e.Streams {
			types = append(types, TypeJSON+";stream=watch", TypeProtobuf+";stream=watch")
		}
		return NoRoute(types...)
	}
	if e.Watch {
		// A format that is supported for lists gets the error for streams, any other that for
		// lists.
		list := e
		list.Watch = false
		_, e.Watch = accept(header, list)
	}
	if e.Metadata && !e.Watch {
		// Partial metadata always has a protobuf encoding.
		e.Protobuf = true
	}
	return NotAcceptable(fmt.Sprintf("only the following media types are accepted: %s", strings.Join(supported(e), ", ")))
}

// Named reports whether an Accept header contains one of the media types or */*, regardless of
// parameters. It returns true for an empty header.
func Named(header string, types ...string) bool {
	return header == "" || named(header, append(types, "*/*"))
}

// named reports whether a header contains one of the media types, regardless of parameters.
func named(header string, types []string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(clause, ";")
		if slices.Contains(types, strings.TrimSpace(name)) {
			return true
		}
	}
	return false
}

// NoRoute returns the error 406 of upstream's router for an Accept header that contains none of
// types, the media types that a path serves.
func NoRoute(types ...string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + strings.Join(types, ", "),
		Details: &metav1.StatusDetails{},
	}}
}

// Patch returns the media type of a patch from the Content-Type. It returns an error 415 unless the type is one of
// taken. If routed is set, the error has the message of upstream's router, which rejects such patches of built-in
// resources.
func Patch(req *http.Request, routed bool, taken []string) (string, error) {
	header := req.Header.Get("Content-Type")
	if routed && !named(header, taken) {
		return "", &statusError{metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusUnsupportedMediaType,
			Reason:  metav1.StatusReasonUnsupportedMediaType,
			Message: "415: Unsupported Media Type",
			Details: &metav1.StatusDetails{},
		}}
	}
	media, _, _ := strings.Cut(header, ";")
	if !slices.Contains(taken, media) {
		return "", unsupported(taken)
	}
	return media, nil
}

// NotAcceptable returns the error 406 with message, for a response that is not available in the format that the
// client accepts.
func NotAcceptable(message string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: message,
	}}
}

// unsupported returns the error 415 for a request body that has none of the accepted media types.
func unsupported(accepted []string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnsupportedMediaType,
		Reason:  metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", strings.Join(accepted, ", ")),
	}}
}
