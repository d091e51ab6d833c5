// Package negotiate settles in which form an answer is sent, by the Accept
// header, and in which form a body came, by the Content-Type header.
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

// Media is one encoding.
type Media uint8

// The encodings.
const (
	JSON Media = iota
	YAML
	Protobuf
)

// Types are the media types by name, in the order in which errors list them.
const (
	TypeJSON     = "application/json"
	TypeYAML     = "application/yaml"
	TypeProtobuf = "application/vnd.kubernetes.protobuf"
)

// String is the media type.
func (m Media) String() string {
	switch m {
	case YAML:
		return TypeYAML
	case Protobuf:
		return TypeProtobuf
	}
	return TypeJSON
}

// As is what an object is turned into.
type As uint8

// Objects are sent as they are, as rows of a table, or by metadata alone.
const (
	Object As = iota
	Table
	Metadata
	MetadataList
	// Aggregated is the discovery of all groups in one document.
	Aggregated
)

// Format is the settled form of an answer.
type Format struct {
	Media Media
	As    As
	// Version of the group of what As names, "v1" most often.
	Version string
	Pretty  bool
	// Profile of discovery.
	Profile string
}

// Endpoint says what can be sent.
type Endpoint struct {
	// Protobuf: objects have a protobuf form.
	Protobuf bool
	// Metadata: objects have metadata, so tables and partial metadata can
	// be made; Tableless: but no tables.
	Metadata, Tableless bool
	// Aggregated: discovery in one document can be made.
	Aggregated bool
	// Watch: what is sent is a stream of events.
	Watch bool
	// Routed: what is asked for is a built-in resource, Streams: or a list of
	// such, which can be watched. Errors tell.
	Routed, Streams bool
}

// A client sends the same header with each request, so what headers mean is
// remembered, up to a bound.
type cacheKey struct {
	header   string
	endpoint Endpoint
}

// Negotiator settles forms and remembers what it settled. The zero value is
// ready, and safe for use by several goroutines.
type Negotiator struct {
	mu    sync.RWMutex
	known map[cacheKey]Format
}

const maxKnown = 512

// Response settles the form of the answer to req.
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

// offer decides whether a media type with these parameters can be sent.
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

// pretty tells whether a person may be reading.
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

// Body tells in which form the body of req came.
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

// statusError is an error that is a Status.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

func notAcceptable(header string, e Endpoint) error {
	types := []string{TypeJSON, TypeYAML, TypeProtobuf}
	if e.Routed && !Named(header, types...) {
		// Upstream's router has said so before anybody looks at parameters.
		if e.Streams {
			types = append(types, TypeJSON+";stream=watch", TypeProtobuf+";stream=watch")
		}
		return NoRoute(types...)
	}
	if e.Watch {
		// What could be sent as a list is refused as a stream, all else before.
		list := e
		list.Watch = false
		_, e.Watch = accept(header, list)
	}
	if e.Metadata && !e.Watch {
		// Metadata has a protobuf form, whatever the rest has.
		e.Protobuf = true
	}
	return NotAcceptable(fmt.Sprintf("only the following media types are accepted: %s", strings.Join(supported(e), ", ")))
}

// Named tells whether an Accept header names one of types or anything, whatever
// the parameters are.
func Named(header string, types ...string) bool {
	return header == "" || named(header, append(types, "*/*"))
}

func named(header string, types []string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(clause, ";")
		if slices.Contains(types, strings.TrimSpace(name)) {
			return true
		}
	}
	return false
}

// NoRoute is the error for an Accept header that names none of the types which
// are served at a path.
func NoRoute(types ...string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + strings.Join(types, ", "),
		Details: &metav1.StatusDetails{},
	}}
}

// Patch tells the media type of a patch, which must be one of taken. Routed is
// as in Endpoint.
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

// NotAcceptable is the error of an answer that cannot be had in the form that
// the client asks for.
func NotAcceptable(message string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: message,
	}}
}

// unsupported is the error for a body in a form that is not taken.
func unsupported(accepted []string) error {
	return &statusError{metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnsupportedMediaType,
		Reason:  metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", strings.Join(accepted, ", ")),
	}}
}
