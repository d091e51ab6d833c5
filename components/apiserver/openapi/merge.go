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

// Aggregation has the documents of other servers. Its methods are called by
// several goroutines.
type Aggregation interface {
	// Generation changes when the documents may have.
	Generation() uint64
	// OpenAPIV3 returns where the documents of v3 are, by group and version
	// in the form of "apis/GROUP/VERSION". Whole is false when a server did not
	// tell, which may be other in a moment.
	OpenAPIV3(ctx context.Context) (paths map[string]string, whole bool)
	// OpenAPIV3Handler returns who answers for one of them, nil if that is
	// not another server.
	OpenAPIV3Handler(name string) http.Handler
	// OpenAPIV2 returns what is to be added to the document of v2. Whole is as of
	// OpenAPIV3.
	OpenAPIV2(ctx context.Context) (parts []Part, whole bool)
}

// Part is what another server adds to the document of v2.
type Part struct {
	Paths       map[string]json.RawMessage
	Definitions map[string]json.RawMessage
	// Hidden are paths of its document that are not added, for they are not its own.
	Hidden map[string]json.RawMessage
}

// Aggregate merges the documents of other servers from now on. It is to be
// called before the handler answers.
func (h *Handler) Aggregate(a Aggregation) { h.aggregation = a }

// merge adds what other servers have to the documents that show all; nil when that
// is nothing. Whole is false when something may be missing.
func (h *Handler) merge(ctx context.Context, path string, data []byte) (merged []byte, whole bool, err error) {
	// The document is for others, too, who wait for it longer than who asked first.
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

// mergeV2 adds paths, what they refer to, and definitions that nothing refers to.
// Other servers know types as they were in other releases: a definition whose
// name another one has already is added by a name of its own, NAME_v2, unless
// both are the same.
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
		renamed := renames(definitions, p.Definitions, wanted)
		for path, item := range added {
			paths[path] = refer(item, renamed)
		}
		for name, definition := range wanted {
			name = cmp.Or(renamed[name], name)
			if _, ok := definitions[name]; !ok {
				definitions[name] = refer(definition, renamed)
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

// renames are the names of wanted definitions, of all those of their document,
// that existing ones have that are not the same, and what they are called instead.
func renames(existing, document, wanted map[string]json.RawMessage) map[string]string {
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

// sameDefinition compares definitions but for the kinds that they tell of.
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

// refer makes JSON refer to models by their new names.
func refer(raw json.RawMessage, renamed map[string]string) json.RawMessage {
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

// references are the names of the models that JSON refers to.
func references(raw []byte) []string {
	var out []string
	for _, m := range reference.FindAllSubmatch(raw, -1) {
		out = append(out, string(m[1]))
	}
	return out
}

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

// contentTag is the ETag of what is not made of parts that are known before.
func contentTag(data []byte) string {
	return fmt.Sprintf("%q", strings.ToUpper(fmt.Sprintf("%x", sha256.Sum256(data))))
}
