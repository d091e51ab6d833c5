package openapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// other is an Aggregation that responds once answers is set.
type other struct {
	answers bool
	asked   int
	ended   error
}

func (*other) Generation() uint64                   { return 1 }
func (*other) OpenAPIV3Handler(string) http.Handler { return nil }

func (o *other) OpenAPIV3(ctx context.Context) (map[string]string, bool) {
	o.asked++
	o.ended = ctx.Err()
	if !o.answers {
		return nil, false
	}
	return map[string]string{"apis/x.example.com/v1": "/openapi/v3/apis/x.example.com/v1?hash=1"}, true
}

func (o *other) OpenAPIV2(ctx context.Context) ([]Part, bool) {
	o.asked++
	o.ended = ctx.Err()
	if !o.answers {
		return nil, false
	}
	return []Part{{Paths: map[string]json.RawMessage{"/apis/x.example.com/v1/": json.RawMessage("{}")}}}, true
}

// TestAggregatedServerUnavailable checks that a document of a server that did not respond is added
// later, and that the server is not queried for every request.
func TestAggregatedServerUnavailable(t *testing.T) {
	for _, path := range []string{"/openapi/v2", "/openapi/v3"} {
		h, o := handler(), &other{}
		h.Aggregate(o)
		// The request of the first client is canceled, but the document is for all clients.
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if doc, err := h.document(gone, path, mimeJSON); err != nil || doc == nil || o.ended != nil {
			t.Fatalf("%s: %v, asked with %v", path, err, o.ended)
		}
		o.answers = true
		if got := get(t, h, path).Body.String(); strings.Contains(got, "x.example.com") || o.asked != 1 {
			t.Errorf("%s: queried %d times", path, o.asked)
		}
		h.documents[path+mimeJSON].until = time.Now()
		for range 2 {
			if got := get(t, h, path).Body.String(); !strings.Contains(got, "x.example.com") || o.asked != 2 {
				t.Errorf("%s: the document lacks the other server's part, after %d queries", path, o.asked)
			}
		}
	}
}

// TestMergeConflicts checks that different types with the same name are kept separate and that none
// is lost.
func TestMergeConflicts(t *testing.T) {
	const here = `{"swagger":"2.0","paths":{"/a":{"$ref":"#/definitions/Pod"}},"definitions":{
		"Pod":{"description":"a pod","properties":{"meta":{"$ref":"#/definitions/Meta"}}},
		"Meta":{"type":"object","x-kubernetes-group-version-kind":[{"kind":"Meta"}]}}}`
	part := Part{
		Paths: map[string]json.RawMessage{
			"/a": json.RawMessage(`{"$ref":"#/definitions/Shadowed"}`),
			"/x": json.RawMessage(`{"get":{"$ref":"#/definitions/Pod"}}`),
		},
		Hidden: map[string]json.RawMessage{"/hidden": json.RawMessage(`{"$ref":"#/definitions/Hidden"}`)},
		Definitions: map[string]json.RawMessage{
			"Pod":      json.RawMessage(`{"description":"another","properties":{"next":{"$ref":"#/definitions/Pod"},"meta":{"$ref":"#/definitions/Meta"},"is":{"$ref":"#/definitions/Podlike"}}}`),
			"Meta":     json.RawMessage(`{"type":"object"}`),
			"Podlike":  json.RawMessage(`{"type":"string"}`),
			"Alone":    json.RawMessage(`{"type":"object","properties":{"of":{"$ref": "#/definitions/Pod"}}}`),
			"Hidden":   json.RawMessage(`{}`),
			"Shadowed": json.RawMessage(`{}`),
		},
	}
	third := Part{
		Paths:       map[string]json.RawMessage{"/y": json.RawMessage(`{"get":{"$ref":"#/definitions/Pod"}}`)},
		Definitions: map[string]json.RawMessage{"Pod": json.RawMessage(`{"description":"a third"}`)},
	}
	got, err := mergeV2([]byte(here), []Part{part, third})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"definitions":{` +
		`"Alone":{"type":"object","properties":{"of":{"$ref":"#/definitions/Pod_v2"}}},` +
		`"Meta":{"type":"object","x-kubernetes-group-version-kind":[{"kind":"Meta"}]},` +
		`"Pod":{"description":"a pod","properties":{"meta":{"$ref":"#/definitions/Meta"}}},` +
		`"Pod_v2":{"description":"another","properties":{"next":{"$ref":"#/definitions/Pod_v2"},"meta":{"$ref":"#/definitions/Meta"},"is":{"$ref":"#/definitions/Podlike"}}},` +
		`"Pod_v3":{"description":"a third"},` +
		`"Podlike":{"type":"string"}},` +
		`"paths":{"/a":{"$ref":"#/definitions/Pod"},"/x":{"get":{"$ref":"#/definitions/Pod_v2"}},"/y":{"get":{"$ref":"#/definitions/Pod_v3"}}},"swagger":"2.0"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
