package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"hyperkube/components/apiserver/openapi"
)

var _ openapi.Aggregation = (*Aggregator)(nil)

// document is another server's OpenAPI v2 document, with its paths and definitions still encoded.
type document struct {
	etag        string
	paths       map[string]json.RawMessage
	definitions map[string]json.RawMessage
}

// queryBackends calls ask concurrently for each aggregated server that is available, for at most discoveryTimeout. It
// passes each result to take, one at a time. It returns false if a server did not respond or reported an internal
// error, so that the results are incomplete. Another error status means that the server has no document.
func queryBackends[T any](ctx context.Context, a *Aggregator, ask func(*backend, context.Context) (T, error), take func(*backend, T)) bool {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards the data that take writes, and whole
	whole := true
	for _, b := range a.backends() {
		if !b.available.Load() {
			continue // the generation changes when the server becomes available
		}
		wg.Go(func() {
			got, err := ask(b, ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				var bad *statusError
				if !errors.As(err, &bad) || bad.code >= http.StatusInternalServerError {
					whole = false // other status codes mean that the server has no document
				}
				b.cfg.Log.DebugContext(ctx, "reading OpenAPI document of aggregated API server failed; its schemas are missing in this server's OpenAPI document, retrying when a client requests that document, or after a status below 500 when the aggregated API changes", "apiservice", b.name, "err", err)
				return
			}
			take(b, got)
		})
	}
	wg.Wait()
	return whole
}

// OpenAPIV3 implements openapi.Aggregation. It returns the URLs of other servers' OpenAPI v3
// documents by their path below /openapi/v3/. whole is false if a server did not respond.
func (a *Aggregator) OpenAPIV3(ctx context.Context) (paths map[string]string, whole bool) {
	paths = map[string]string{}
	whole = queryBackends(ctx, a, (*backend).openAPIV3, func(b *backend, at string) {
		if at != "" {
			paths[strings.TrimPrefix(b.path(), "/")] = at
		}
	})
	return paths, whole
}

// openAPIV3 returns the URL of the server's OpenAPI v3 document for its group version, or "" if
// there is none.
func (b *backend) openAPIV3(ctx context.Context) (string, error) {
	data, _, err := b.read(ctx, "/openapi/v3", "application/json")
	if err != nil {
		return "", err
	}
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return "", fmt.Errorf("reading the index of OpenAPI: %w", err)
	}
	return index.Paths[strings.TrimPrefix(b.path(), "/")].ServerRelativeURL, nil
}

// OpenAPIV3Handler implements openapi.Aggregation. It returns the handler that proxies requests for
// a path below /openapi/v3/ to another server, or nil otherwise. Other components of this process
// publish no OpenAPI documents.
func (a *Aggregator) OpenAPIV3Handler(path string) http.Handler {
	if b := a.current.Load().remote[groupVersionOfPath("/"+path)]; b != nil {
		return b
	}
	return nil
}

// OpenAPIV2 implements openapi.Aggregation. It returns the paths and definitions of other servers'
// OpenAPI v2 documents, in a stable order. whole is false if a server did not respond.
func (a *Aggregator) OpenAPIV2(ctx context.Context) (parts []openapi.Part, whole bool) {
	of := map[string]openapi.Part{}
	whole = queryBackends(ctx, a, (*backend).openAPIV2, func(b *backend, doc *document) {
		part := openapi.Part{Paths: map[string]json.RawMessage{}, Hidden: map[string]json.RawMessage{}, Definitions: doc.definitions}
		for path, item := range doc.paths {
			if path == b.path()+"/" || strings.HasPrefix(path, b.path()+"/") {
				part.Paths[path] = item
			} else {
				part.Hidden[path] = item
			}
		}
		of[b.name] = part
	})
	// Definition names depend on the order of the parts, so the order must be stable.
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, of[name])
	}
	return parts, whole
}

// openAPIV2 returns the server's OpenAPI v2 document. It transfers the document only if its ETag has changed since
// the last call, and otherwise returns the last one.
func (b *backend) openAPIV2(ctx context.Context) (*document, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	header := http.Header{"Accept": {"application/json"}}
	if b.document != nil && b.document.etag != "" {
		header.Set("If-None-Match", b.document.etag)
	}
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
		return nil, &statusError{resp.Request.URL, resp.StatusCode}
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
