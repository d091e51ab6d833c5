package openapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// Aggregation provides the OpenAPI documents of aggregated API servers. Its methods must be safe
// for concurrent use.
type Aggregation interface {
	// Generation returns a number that is different when the documents may have changed.
	Generation() uint64
	// OpenAPIV3 returns the URLs of the servers' v3 documents. The keys are "apis/GROUP/VERSION".
	// whole is false if a server did not respond, so that a part may be missing temporarily.
	OpenAPIV3(ctx context.Context) (paths map[string]string, whole bool)
	// OpenAPIV3Handler returns a handler that serves the v3 document with this name
	// ("apis/GROUP/VERSION") from the server that provides it, or nil if no aggregated server does.
	OpenAPIV3Handler(name string) http.Handler
	// OpenAPIV2 returns what each server adds to the v2 document. whole has the same meaning as for
	// OpenAPIV3.
	OpenAPIV2(ctx context.Context) (parts []Part, whole bool)
}

// Part is what one aggregated server adds to the v2 document: paths, and the schemas (definitions)
// that they use.
type Part struct {
	Paths       map[string]json.RawMessage
	Definitions map[string]json.RawMessage
	// Hidden contains paths of the server's document that do not belong to its API groups. They are
	// not added, and neither are definitions that only they use.
	Hidden map[string]json.RawMessage
}

// Aggregate sets the source of the documents of aggregated servers. It must be called before the
// handler serves requests.
func (h *Handler) Aggregate(a Aggregation) { h.aggregation = a }

// merge adds the documents of aggregated servers to data, the v2 document or the list of v3 documents at path. merged
// is nil for other paths and if there is nothing to add. whole is false if something may be missing because a server
// did not respond.
func (h *Handler) merge(ctx context.Context, path string, data []byte) (merged []byte, whole bool, err error) {
	// The result is cached for all clients, so it must not be canceled together with this request.
	ctx = context.WithoutCancel(ctx)
	whole = true
	switch path {
	case "/openapi/v2":
		var parts []Part
		if parts, whole = h.aggregation.OpenAPIV2(ctx); len(parts) > 0 {
			merged, err = mergeV2(data, parts)
		}
	case "/openapi/v3":
		var others map[string]string
		if others, whole = h.aggregation.OpenAPIV3(ctx); len(others) > 0 {
			merged, err = mergeV3(data, others)
		}
	}
	return merged, whole, err
}

// mergeV2 adds the paths of other servers to a v2 document, with the definitions that they refer to
// and definitions that nothing refers to. Existing paths are kept. Other servers may contain types
// of other releases: a definition whose name exists already is added as NAME_v2, unless both are
// equal.
func mergeV2(data []byte, parts []Part) ([]byte, error) {
	var doc map[string]json.RawMessage
	var paths, definitions map[string]json.RawMessage
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2: %w", err)
	}
	if err := json.Unmarshal(doc["paths"], &paths); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2: %w", err)
	}
	if err := json.Unmarshal(doc["definitions"], &definitions); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2: %w", err)
	}
	for _, p := range parts {
		added := map[string]json.RawMessage{}
		var names, all []string
		for path, item := range p.Paths {
			refers := references(item)
			all = append(all, refers...)
			if _, ok := paths[path]; !ok {
				added[path] = item
				names = append(names, refers...)
			}
		}
		for _, item := range p.Hidden {
			all = append(all, references(item)...)
		}
		wanted, used := closure(p.Definitions, names), closure(p.Definitions, all)
		for name, definition := range p.Definitions {
			if _, ok := used[name]; !ok {
				wanted[name] = definition
			}
		}
		renamed := conflictRenames(definitions, p.Definitions, wanted)
		for path, item := range added {
			paths[path] = renameReferences(item, renamed)
		}
		for name, definition := range wanted {
			name = cmp.Or(renamed[name], name)
			if _, ok := definitions[name]; !ok {
				definitions[name] = renameReferences(definition, renamed)
			}
		}
	}
	var err error
	if doc["paths"], err = json.Marshal(paths); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2: %w", err)
	}
	if doc["definitions"], err = json.Marshal(definitions); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2: %w", err)
	}
	return json.Marshal(doc)
}

// conflictRenames returns new names, NAME_v2 and so on, for those wanted definitions whose names exist already for
// different definitions. existing are the definitions of the merged document, document those of the added document,
// to which the wanted ones may refer.
func conflictRenames(existing, document, wanted map[string]json.RawMessage) map[string]string {
	out := map[string]string{}
	for name, definition := range wanted {
		to := name
		for i := 2; ; i++ {
			is, ok := existing[to]
			if ok && sameDefinition(is, definition) {
				break
			}
			if _, theirs := document[to]; !ok && (to == name || !theirs) {
				break
			}
			to = fmt.Sprintf("%s_v%d", name, i)
		}
		if to != name {
			out[name] = to
		}
	}
	return out
}

// sameDefinition reports whether two definitions are equal, apart from the extension that names their kinds. It
// returns false if one is not valid JSON.
func sameDefinition(a, b json.RawMessage) bool {
	var of [2]map[string]any
	for i, raw := range []json.RawMessage{a, b} {
		if err := json.Unmarshal(raw, &of[i]); err != nil {
			return false
		}
		delete(of[i], "x-kubernetes-group-version-kind")
	}
	return reflect.DeepEqual(of[0], of[1])
}

// renameReferences replaces the names of definitions in all references in raw. renamed maps old to
// new names.
func renameReferences(raw json.RawMessage, renamed map[string]string) json.RawMessage {
	if len(renamed) == 0 {
		return raw
	}
	return reference.ReplaceAllFunc(raw, func(found []byte) []byte {
		name := reference.FindSubmatch(found)[1]
		if to, ok := renamed[string(name)]; ok {
			return bytes.Replace(found, name, []byte(to), 1)
		}
		return found
	})
}

// references returns the names of the definitions to which the JSON in raw refers with $ref.
func references(raw []byte) []string {
	var out []string
	for _, m := range reference.FindAllSubmatch(raw, -1) {
		out = append(out, string(m[1]))
	}
	return out
}

// mergeV3 adds the URLs of other servers' documents, by name, to data, the list of v3 documents.
func mergeV3(data []byte, others map[string]string) ([]byte, error) {
	var doc struct {
		Paths map[string]map[string]string `json:"paths"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v3: %w", err)
	}
	for name, at := range others {
		doc.Paths[name] = map[string]string{"serverRelativeURL": at}
	}
	return json.Marshal(doc)
}

// contentETag returns an ETag that is a hash of the content.
func contentETag(data []byte) string {
	return fmt.Sprintf("%q", strings.ToUpper(fmt.Sprintf("%x", sha256.Sum256(data))))
}
