package aggregation

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"hyperkube/components/apiserver/openapi"
)

var _ openapi.Aggregation = (*Aggregator)(nil)

// document is a server's OpenAPI v2 document.
type document struct {
	etag        string
	paths       map[string]json.RawMessage
	definitions map[string]json.RawMessage
}

// OpenAPIV3 lists the documents of other servers, by their path below
// /openapi/v3/, and where each is.
func (a *Aggregator) OpenAPIV3(ctx context.Context) map[string]string {
	out := map[string]string{}
	for _, b := range a.remotes() {
		if !b.available.Load() {
			continue
		}
		data, _, err := b.read(ctx, "/openapi/v3", "application/json")
		if err != nil {
			b.cfg.Log.DebugContext(ctx, "OpenAPI of an aggregated server", "apiservice", b.name, "error", err)
			continue
		}
		var index struct {
			Paths map[string]struct {
				ServerRelativeURL string `json:"serverRelativeURL"`
			} `json:"paths"`
		}
		if err := json.Unmarshal(data, &index); err != nil {
			b.cfg.Log.DebugContext(ctx, "OpenAPI of an aggregated server", "apiservice", b.name, "error", err)
			continue
		}
		name := strings.TrimPrefix(b.path(), "/")
		if at, ok := index.Paths[name]; ok {
			out[name] = at.ServerRelativeURL
		}
	}
	return out
}

// OpenAPIV3Handler returns who answers for /openapi/v3/ and path, nil if that
// is not another server.
func (a *Aggregator) OpenAPIV3Handler(path string) http.Handler { return a.Handler("/" + path) }

// OpenAPIV2 returns the paths and definitions of other servers.
func (a *Aggregator) OpenAPIV2(ctx context.Context) []openapi.Part {
	var out []openapi.Part
	for _, b := range a.remotes() {
		if !b.available.Load() {
			continue
		}
		doc, err := b.openAPIV2(ctx)
		if err != nil {
			b.cfg.Log.DebugContext(ctx, "OpenAPI of an aggregated server", "apiservice", b.name, "error", err)
			continue
		}
		part := openapi.Part{Paths: map[string]json.RawMessage{}, Definitions: doc.definitions}
		for path, item := range doc.paths {
			if path == b.path()+"/" || strings.HasPrefix(path, b.path()+"/") {
				part.Paths[path] = item
			}
		}
		out = append(out, part)
	}
	return out
}

// openAPIV2 asks for the document, and gets it only if it has changed.
func (b *backend) openAPIV2(ctx context.Context) (*document, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	header := http.Header{"Accept": {"application/json"}}
	if b.document != nil && b.document.etag != "" {
		header.Set("If-None-Match", b.document.etag)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*discoveryTimeout)
	defer cancel()
	resp, err := b.get(ctx, "/openapi/v2", header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotModified:
		return b.document, nil
	case http.StatusOK:
	default:
		return nil, fmt.Errorf("bad status from %v: %d", resp.Request.URL, resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("reading %v: %w", resp.Request.URL, err)
	}
	var in struct {
		Paths       map[string]json.RawMessage `json:"paths"`
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("reading %v: %w", resp.Request.URL, err)
	}
	b.document = &document{etag: resp.Header.Get("Etag"), paths: in.Paths, definitions: in.Definitions}
	return b.document, nil
}
