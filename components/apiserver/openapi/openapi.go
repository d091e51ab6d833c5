// Package openapi serves the OpenAPI documents of the API: v2 as a whole, v3 by
// group and version. The schemas of all published kinds are made when the
// project is built and kept packed; a document is put together when it is first
// asked for, from the raw schemas and the paths of what is served.
// https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
package openapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the schemas
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/klauspost/compress/zstd"
	"github.com/munnerz/goautoneg"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
)

//go:generate ../../../scripts/generate-openapi
//go:embed schemas.json.zst
var packed []byte

// Registry tells what is served.
type Registry interface {
	Resources() []*registry.Resource
	GroupVersions() []schema.GroupVersion
}

// Handler serves /openapi/v2, /openapi/v3 and what is below it.
type Handler struct {
	registry    Registry
	version     string
	aggregation Aggregation

	mu sync.Mutex // guards what follows
	// documents made, by path and form. They are dropped when what is served
	// has changed.
	documents map[string]*document
	served    []*registry.Resource
	// generation of the aggregation when they were made.
	generation uint64
}

// document is one document in one form.
type document struct {
	data []byte
	etag string
	made time.Time
	// until is when it is to be made anew, because another server did not answer;
	// zero: when what is served changes.
	until time.Time
}

// incompleteTime is for how long a document stands in which another server's part is
// missing.
const incompleteTime = 30 * time.Second

// New returns a handler for what reg serves; the documents
// tell of its version, e.g. "v1.37.2", what counts for an API: "1.37".
func New(reg Registry, version string) *Handler {
	if parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3); len(parts) == 3 {
		version = parts[0] + "." + parts[1]
	}
	return &Handler{registry: reg, version: version, documents: map[string]*document{}}
}

const (
	mimeJSON    = "application/json"
	mimeProtoV2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	// The older spelling is what clients before v1.27 ask for.
	mimeProtoV2Old = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

	mimeProtoV3    = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	mimeProtoV3Old = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// ServeHTTP as http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch r.URL.Path {
	case "/openapi/v2/":
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	case "/openapi/v3/":
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if name, ok := strings.CutPrefix(path, "/openapi/v3/"); ok && h.aggregation != nil {
		if other := h.aggregation.OpenAPIV3Handler(name); other != nil {
			other.ServeHTTP(w, r)
			return
		}
	}
	if accept := r.Header.Get("Accept"); path == "/openapi/v2" && !acceptable(accept) {
		w.Header().Set("Vary", "Accept")
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	form := mimeJSON
	switch {
	case path == "/openapi/v2" && wantsProto(r.Header.Get("Accept")):
		form = mimeProtoV2
	case strings.HasPrefix(path, "/openapi/v3/"):
		if form = formV3(r.Header.Get("Accept")); form == "" {
			// What is not there is told first.
			if doc, err := h.document(r.Context(), path, mimeJSON); err == nil && doc != nil {
				w.Header().Set("Vary", "Accept")
				if len(goautoneg.ParseAccept(r.Header.Get("Accept"))) > 0 {
					w.WriteHeader(http.StatusNotAcceptable)
				}
				return
			}
			form = mimeJSON
		}
	}
	doc, err := h.document(r.Context(), path, form)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case doc == nil:
		if _, ok := strings.CutPrefix(path, "/openapi/v3/"); ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Type", form)
	if form == mimeProtoV2 {
		// What it is asked for by is no valid media type.
		header.Set("Content-Type", mimeProtoV2Old)
	}
	header.Set("Etag", doc.etag)
	header.Set("Vary", "Accept")
	header.Set("Last-Modified", doc.made.UTC().Format(http.TimeFormat))
	hash, now := r.URL.Query().Get("hash"), strings.Trim(doc.etag, `"`)
	switch {
	case hash == "":
	case hash != now && strings.HasPrefix(path, "/openapi/v3/"):
		// Who keeps what came from an address with a hash keeps it for good.
		http.Redirect(w, r, path+"?hash="+now, http.StatusMovedPermanently)
		return
	case hash == now:
		// What has its hash in its address never changes.
		header.Set("Cache-Control", "public, immutable")
		header.Set("Expires", "Fri, 31 Dec 2099 23:59:59 GMT")
	}
	if doc.known(r.Header) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	request.SendLater(w, 0, func() { _, _ = w.Write(doc.data) })
}

// known tells whether a client says that it has the document.
func (d *document) known(h http.Header) bool {
	if match := h.Get("If-None-Match"); match != "" {
		return match == "*" || strings.Contains(match, d.etag)
	}
	since, err := http.ParseTime(h.Get("If-Modified-Since"))
	return err == nil && !d.made.Truncate(time.Second).After(since)
}

// acceptable tells whether version 2 can be had in one of the forms in accept.
func acceptable(accept string) bool {
	if accept == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		mediaType, _, _ := strings.Cut(part, ";")
		switch strings.TrimSpace(mediaType) {
		case mimeProtoV2, mimeProtoV2Old, mimeJSON, "*/*", "application/*":
			return true
		}
	}
	return false
}

func wantsProto(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		// Not by package mime: it takes no "@".
		mediaType, _, _ := strings.Cut(part, ";")
		switch strings.TrimSpace(mediaType) {
		case mimeProtoV2, mimeProtoV2Old:
			return true
		case mimeJSON, "*/*":
			return false
		}
	}
	return false
}

// formV3 is the form in which a document of version 3 can be had by an Accept
// header; empty: in none.
func formV3(accept string) string {
	if accept == "" {
		return mimeJSON
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch "application/" + clause.SubType {
		case mimeJSON, "application/*":
			return mimeJSON
		case mimeProtoV3, mimeProtoV3Old:
			return mimeProtoV3
		}
	}
	return ""
}

// document returns a document, made now if it must be, or nil if there is none
// at that path.
func (h *Handler) document(ctx context.Context, path, form string) (*document, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if resources := h.registry.Resources(); !slices.Equal(resources, h.served) {
		h.served = resources
		clear(h.documents)
	}
	if h.aggregation != nil {
		if now := h.aggregation.Generation(); now != h.generation {
			h.generation = now
			clear(h.documents)
		}
	}
	if doc := h.documents[path+form]; doc != nil && (doc.until.IsZero() || time.Now().Before(doc.until)) {
		return doc, nil
	}
	data, err := h.make(path)
	if err != nil || data == nil {
		return nil, err
	}
	doc := &document{etag: h.etag(path), made: time.Now()}
	if h.aggregation != nil {
		merged, whole, err := h.merge(ctx, path, data)
		if err != nil {
			return nil, err
		}
		if merged != nil {
			data, doc.etag = merged, contentTag(merged)
		}
		if !whole {
			doc.until = time.Now().Add(incompleteTime)
		}
	}
	if form != mimeJSON {
		if data, err = protobuf(form, data); err != nil {
			return nil, fmt.Errorf("making the protobuf form of %s: %w", path, err)
		}
	}
	doc.data = data
	h.documents[path+form] = doc
	return doc, nil
}

// protobuf is the form of a document of JSON that gnostic defines.
func protobuf(form string, data []byte) ([]byte, error) {
	if form == mimeProtoV3 {
		doc, err := openapi_v3.ParseDocument(data)
		if err != nil {
			return nil, err
		}
		return proto.Marshal(doc)
	}
	doc, err := openapi_v2.ParseDocument(data)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(doc)
}

// etag tells documents apart by what they are made of, so that none needs to be
// made for it.
func (h *Handler) etag(path string) string {
	sum := sha256.New()
	sum.Write(packed)
	fmt.Fprintln(sum, h.version, path)
	for _, r := range h.served {
		if path == "/openapi/v2" || path == "/openapi/v3" || path == "/openapi/v3/"+groupPath(r.GroupVersion()) {
			fmt.Fprintln(sum, r.GVR(), r.Kind, r.Verbs)
			if r.Custom != nil {
				fmt.Fprintln(sum, r.Custom.State)
			}
		}
	}
	return fmt.Sprintf("%q", strings.ToUpper(fmt.Sprintf("%x", sum.Sum(nil))))
}

func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

func (h *Handler) make(path string) ([]byte, error) {
	switch path {
	case "/openapi/v2":
		return h.whole()
	case "/openapi/v3":
		return h.index()
	}
	name := strings.TrimPrefix(path, "/openapi/v3/")
	if gv, ok := h.sections()[name]; ok && name != path {
		return h.group(name, gv)
	}
	return nil, nil
}

// index lists the documents of v3.
func (h *Handler) index() ([]byte, error) {
	paths := map[string]any{}
	for name := range h.sections() {
		url := "/openapi/v3/" + name
		paths[name] = map[string]string{"serverRelativeURL": url + "?hash=" + strings.Trim(h.etag(url), `"`)}
	}
	return json.Marshal(map[string]any{"paths": paths})
}

// security is how clients show who they are.
var security = members{{"BearerToken", members{
	{"type", "apiKey"}, {"description", "Bearer Token authentication"}, {"name", "authorization"}, {"in", "header"},
}}}

// group makes the v3 document of one group and version.
func (h *Handler) group(name string, gv *schema.GroupVersion) ([]byte, error) {
	schemas, err := unpack()
	if err != nil {
		return nil, err
	}
	p := newPaths(true)
	h.section(p, name, gv)
	items, err := p.items(nil)
	if err != nil {
		return nil, err
	}
	var components members
	if all := closure(p.with(schemas["v3"]), p.models); len(all) > 0 {
		for _, model := range []string{deleteModel, watchModel} {
			if all[model], err = h.ofGroup(all[model], gv); err != nil {
				return nil, err
			}
			if all[model] == nil {
				delete(all, model)
			}
		}
		components = append(components, member{"schemas", all})
	}
	info := h.info()
	if gv != nil && h.custom(gv.Group) {
		// As upstream calls what definitions define.
		info = members{{"title", "Kubernetes CRD Swagger"}, {"version", "v0.1.0"}}
	} else {
		components = append(components, member{"securitySchemes", security})
	}
	// With escapes for HTML, which version 2 has never had.
	return json.Marshal(members{{"openapi", "3.0.0"}, {"info", info}, {"paths", items}, {"components", components}})
}

// ofGroup leaves of the kinds that a model is, in every group, those that a
// document of version 3 is about.
func (h *Handler) ofGroup(model json.RawMessage, gv *schema.GroupVersion) (json.RawMessage, error) {
	at := bytes.Index(model, []byte(`"`+kindExtension+`":`))
	if at < 0 || gv == nil {
		return model, nil
	}
	var kinds struct {
		All []struct {
			Group   string `json:"group"`
			Kind    string `json:"kind"`
			Version string `json:"version"`
		} `json:"x-kubernetes-group-version-kind"`
	}
	if err := json.Unmarshal(model, &kinds); err != nil {
		return nil, fmt.Errorf("reading OpenAPI schemas: %w", err)
	}
	out := append(slices.Clone(model[:at]), `"`+kindExtension+`":[`...)
	some := false
	for _, kind := range kinds.All {
		switch {
		case h.custom(gv.Group):
			// Clients' library is what they are made by.
			switch kind.Group {
			case "admission.k8s.io", "imagepolicy.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io":
				continue
			}
		case kind.Group != "" && (kind.Group != gv.Group || kind.Version != gv.Version):
			continue
		}
		data, err := encode(kind)
		if err != nil {
			return nil, fmt.Errorf("writing OpenAPI schemas: %w", err)
		}
		if some {
			out = append(out, ',')
		}
		some = true
		out = append(out, data...)
	}
	return append(out, "]}"...), nil
}

// info says what the document is of.
func (h *Handler) info() members {
	return members{{"title", "Kubernetes"}, {"version", h.version}}
}

// whole makes the v2 document.
func (h *Handler) whole() ([]byte, error) {
	schemas, err := unpack()
	if err != nil {
		return nil, err
	}
	p := newPaths(false)
	for name, gv := range h.sections() {
		h.section(p, name, gv)
	}
	shared := map[string]any{}
	items, err := p.items(shared)
	if err != nil {
		return nil, err
	}
	scheme := members{{"BearerToken", members{
		{"description", "Bearer Token authentication"}, {"type", "apiKey"}, {"name", "authorization"}, {"in", "header"},
	}}}
	return encode(members{
		{"swagger", "2.0"},
		{"info", h.info()},
		{"paths", items},
		{"definitions", closure(p.with(schemas["v2"]), p.models)},
		{"parameters", shared},
		{"securityDefinitions", scheme},
		{"security", []any{members{{"BearerToken", []string{}}}}},
	})
}

func unpack() (map[string]map[string]json.RawMessage, error) {
	zip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("unpacking OpenAPI schemas: %w", err)
	}
	defer zip.Close()
	data, err := zip.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("unpacking OpenAPI schemas: %w", err)
	}
	var schemas map[string]map[string]json.RawMessage
	if err := json.Unmarshal(data, &schemas); err != nil {
		return nil, fmt.Errorf("reading OpenAPI schemas: %w", err)
	}
	return schemas, nil
}

var reference = regexp.MustCompile(`"\$ref":\s*"#/(?:definitions|components/schemas)/([^"]+)"`)

// closure returns the named models with all that they refer to.
func closure(all map[string]json.RawMessage, names []string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for len(names) > 0 {
		name := names[len(names)-1]
		names = names[:len(names)-1]
		raw, ok := all[name]
		if _, done := out[name]; done || !ok {
			continue
		}
		out[name] = raw
		for _, match := range reference.FindAllSubmatch(raw, -1) {
			names = append(names, string(match[1]))
		}
	}
	return out
}
