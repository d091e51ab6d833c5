package openapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// other is a server of others that answers once it is told to.
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

// TestOthersLate: what a server did not tell when it was asked is not missing for
// ever, nor is it asked for by everybody.
func TestOthersLate(t *testing.T) {
	for _, path := range []string{"/openapi/v2", "/openapi/v3"} {
		h, o := handler(), &other{}
		h.Aggregate(o)
		// Who asked first does not wait for it, but it is for others, too.
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if doc, err := h.document(gone, path, mimeJSON); err != nil || doc == nil || o.ended != nil {
			t.Fatalf("%s: %v, asked with %v", path, err, o.ended)
		}
		o.answers = true
		if got := get(t, h, path).Body.String(); strings.Contains(got, "x.example.com") || o.asked != 1 {
			t.Errorf("%s: asked %d times", path, o.asked)
		}
		h.documents[path+mimeJSON].until = time.Now()
		for range 2 {
			if got := get(t, h, path).Body.String(); !strings.Contains(got, "x.example.com") || o.asked != 2 {
				t.Errorf("%s: later it has not what another server serves, which was asked %d times", path, o.asked)
			}
		}
	}
}

// TestMergeConflicts: types of another server keep apart from those that have their
// names and are not the same, and none is lost.
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
