// Package openapi serves the OpenAPI documents of the API: v2 as one document, v3 per group and
// version. The schemas of all published kinds are generated at build time and embedded in
// compressed form. A document is assembled at its first request from the raw schemas and the paths
// of the served resources.
// https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
package openapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // for the schemas
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

// packed contains the generated OpenAPI schemas of all published kinds, compressed. The function unpack decodes them.
//
//go:generate ../../../scripts/generate-openapi
//go:embed schemas.json.zst
var packed []byte

// Registry provides the resources that the server currently serves, and their groups and versions.
type Registry interface {
	Resources() []*registry.Resource
	GroupVersions() []schema.GroupVersion
}

// Handler serves the OpenAPI documents at /openapi/v2, /openapi/v3 and the paths below it. It
// builds each document at its first request and caches it.
type Handler struct {
	registry    Registry
	version     string
	aggregation Aggregation

	mu sync.Mutex // guards all fields below
	// documents is the cache of built documents. The key is the path and the format. It is cleared
	// when the served resources change.
	documents map[string]*document
	served    []*registry.Resource
	// generation is the generation of the aggregation when the documents were built.
	generation uint64
}

// document is an encoded OpenAPI document in one format, with its ETag and the time at which it was built.
type document struct {
	data []byte
	etag string
	made time.Time
	// until is when the document must be built again because an aggregated server did not respond.
	// Zero means that it is valid until the served resources change.
	until time.Time
}

// incompleteTTL is how long a document that lacks the part of an unresponsive server is cached.
const incompleteTTL = 30 * time.Second

// New returns a handler for the resources of reg. version is the server's version: the documents
// contain its minor version, e.g. "1.37" for "v1.37.2".
func New(reg Registry, version string) *Handler {
	if parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3); len(parts) == 3 {
		version = parts[0] + "." + parts[1]
	}
	return &Handler{registry: reg, version: version, documents: map[string]*document{}}
}

const (
	mimeJSON    = "application/json"
	mimeProtoV2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	// mimeProtoV2Old is the media type of the v2 document in Protobuf for clients before v1.27, which use the older
	// spelling com.github.
	mimeProtoV2Old = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

	mimeProtoV3    = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	mimeProtoV3Old = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// ServeHTTP serves the document at the request's path, in JSON or Protobuf. Clients can avoid downloads with ETags,
// and with the hash in the URLs of v3 documents. It forwards requests for v3 documents of aggregated servers, and
// responds with 404 for unknown paths and 406 for formats that it does not support.
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
		if form = formatV3(r.Header.Get("Accept")); form == "" {
			// A missing document takes precedence over an unacceptable format.
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
		// The name in the Accept header is not a valid media type.
		header.Set("Content-Type", mimeProtoV2Old)
	}
	header.Set("Etag", doc.etag)
	header.Set("Vary", "Accept")
	header.Set("Last-Modified", doc.made.UTC().Format(http.TimeFormat))
	hash, now := r.URL.Query().Get("hash"), strings.Trim(doc.etag, `"`)
	switch {
	case hash == "":
	case hash != now && strings.HasPrefix(path, "/openapi/v3/"):
		// Responses for URLs with a hash are cached permanently, so redirect to the current hash.
		http.Redirect(w, r, path+"?hash="+now, http.StatusMovedPermanently)
		return
	case hash == now:
		// The content of a URL with the current hash never changes.
		header.Set("Cache-Control", "public, immutable")
		header.Set("Expires", "Fri, 31 Dec 2099 23:59:59 GMT")
	}
	if doc.known(r.Header) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	request.SendLater(w, 0, func() { _, _ = w.Write(doc.data) })
}

// known reports whether the client already has this version of the document, according to the headers If-None-Match
// or, without it, If-Modified-Since.
func (d *document) known(h http.Header) bool {
	if match := h.Get("If-None-Match"); match != "" {
		return match == "*" || strings.Contains(match, d.etag)
	}
	since, err := http.ParseTime(h.Get("If-Modified-Since"))
	return err == nil && !d.made.Truncate(time.Second).After(since)
}

// acceptable reports whether the v2 document is available in one of the formats of an Accept header. An empty header
// allows all.
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

// wantsProto reports whether the first supported format in an Accept header is Protobuf, for the v2 document. Weights
// are ignored.
func wantsProto(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		// Package mime does not accept "@".
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

// formatV3 returns the media type in which a v3 document is sent for an Accept header, JSON for an empty one. It
// returns "" if no format is acceptable.
func formatV3(accept string) string {
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

// document returns the document at a path in the format form, from the cache or newly built. It returns nil if there
// is no document at that path. It drops the whole cache if the served resources or aggregated documents have changed.
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
			data, doc.etag = merged, contentETag(merged)
		}
		if !whole {
			doc.until = time.Now().Add(incompleteTTL)
		}
	}
	if form != mimeJSON {
		if data, err = protobuf(form, data); err != nil {
			return nil, fmt.Errorf("encoding %s as protobuf: %w", path, err)
		}
	}
	doc.data = data
	h.documents[path+form] = doc
	return doc, nil
}

// protobuf converts a JSON document to the Protobuf format form, which the library gnostic defines.
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

// etag returns the ETag of the document at a path. It is a hash of what determines the document, so
// that the list of v3 documents can contain the hashes of all documents without building them. The
// caller must hold h.mu.
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

// groupPath returns the path of a group and version without leading slash, such as "apis/apps/v1"
// or "api/v1". It is also the name of the v3 document.
func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// make builds the JSON document at a path, without the parts of aggregated servers. It returns nil
// if there is none. The caller must hold h.mu.
func (h *Handler) make(path string) ([]byte, error) {
	switch path {
	case "/openapi/v2":
		return h.documentV2()
	case "/openapi/v3":
		return h.index()
	}
	name := strings.TrimPrefix(path, "/openapi/v3/")
	if gv, ok := h.sections()[name]; ok && name != path {
		return h.documentV3(name, gv)
	}
	return nil, nil
}

// index returns the list of v3 documents with their URLs, which contain the hashes of the
// documents.
func (h *Handler) index() ([]byte, error) {
	paths := map[string]any{}
	for name := range h.sections() {
		url := "/openapi/v3/" + name
		paths[name] = map[string]string{"serverRelativeURL": url + "?hash=" + strings.Trim(h.etag(url), `"`)}
	}
	return json.Marshal(map[string]any{"paths": paths})
}

// security is the part of the v3 documents that describes how clients authenticate.
var security = members{{"BearerToken", members{
	{"type", "apiKey"}, {"description", "Bearer Token authentication"}, {"name", "authorization"}, {"in", "header"},
}}}

// documentV3 builds the v3 document of a group and version. name is the name of the document. gv is
// nil for documents about paths that are not resources.
func (h *Handler) documentV3(name string, gv *schema.GroupVersion) ([]byte, error) {
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
			if all[model], err = h.kindsOfGroup(all[model], gv); err != nil {
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
		// The title that upstream uses for custom resources.
		info = members{{"title", "Kubernetes CRD Swagger"}, {"version", "v0.1.0"}}
	} else {
		components = append(components, member{"securitySchemes", security})
	}
	// With HTML escapes, unlike v2.
	return json.Marshal(members{{"openapi", "3.0.0"}, {"info", info}, {"paths", items}, {"components", components}})
}

// kindsOfGroup returns a schema without those kinds in its extension x-kubernetes-group-version-kind that do not
// belong to the group and version of a v3 document. Common types, such as DeleteOptions, have a kind in every group.
// A schema without the extension, and with a nil gv, is returned unchanged.
func (h *Handler) kindsOfGroup(model json.RawMessage, gv *schema.GroupVersion) (json.RawMessage, error) {
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
			// Upstream builds these documents with client-go's scheme, which does not contain these
			// groups.
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

// info returns the part info of the documents: title and version.
func (h *Handler) info() members {
	return members{{"title", "Kubernetes"}, {"version", h.version}}
}

// documentV2 builds the v2 document, which contains all groups and versions.
func (h *Handler) documentV2() ([]byte, error) {
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

// unpack decompresses the generated schemas. The result is by OpenAPI version ("v2" or "v3") and
// name. It is a new copy, which the caller may modify. The schemas are not kept in memory between
// builds.
func unpack() (map[string]map[string]json.RawMessage, error) {
	zip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("decompressing OpenAPI schemas: %w", err)
	}
	defer zip.Close()
	data, err := zip.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("decompressing OpenAPI schemas: %w", err)
	}
	var schemas map[string]map[string]json.RawMessage
	if err := json.Unmarshal(data, &schemas); err != nil {
		return nil, fmt.Errorf("reading OpenAPI schemas: %w", err)
	}
	return schemas, nil
}

// reference matches a reference to a schema in JSON. The submatch is the schema's name.
var reference = regexp.MustCompile(`"\$ref":\s*"#/(?:definitions|components/schemas)/([^"]+)"`)

// closure returns the schemas with the given names and all schemas to which they refer, directly or
// indirectly. It ignores names that do not exist.
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
