package integration

import (
	"strings"
	"testing"

	"hyperkube/components/apiserver"
)

// TestNotFound sends requests for paths, resources and objects that do not exist.
func TestNotFound(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const text, status = "404 page not found", `"reason":"NotFound"`
	for _, tc := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/nope", 404, text},
		{"GET", "/apis/nope/v1/x", 404, text},
		{"GET", "/api/v2/pods", 404, status},
		{"GET", "/apis/apps/v9", 404, status},
		{"GET", "/apis/apps/v1/nope", 404, status},
		{"POST", "/api/v1", 405, `"reason":"MethodNotAllowed"`},
		{"POST", "/apis/apps", 200, `"kind":"APIGroup"`},
		{"POST", "/version", 405, `"reason":"MethodNotAllowed"`},
		{"GET", "/version/x", 404, status},
		{"GET", "/version/", 200, `"minCompatibilityMinor":"36"`},
		{"GET", "/healthz", 200, "ok"},
	} {
		r := a.do(tc.method, tc.path, "")
		body := strings.ReplaceAll(strings.ReplaceAll(r.body, "\n", ""), " ", "")
		if r.code != tc.code || !strings.Contains(body, strings.ReplaceAll(tc.want, " ", "")) || r.header.Get("Cache-Control") != "no-cache, private" {
			t.Errorf("%s %s: %d %v %s", tc.method, tc.path, r.code, r.header, r.body)
		}
	}
}
