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
