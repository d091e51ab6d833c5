package dashboard

import (
	"net/http"
	"strings"
	"testing"
)

// TestExplain requests explanations of a pod with a problem, of one that does not exist, and of one that the user may not read.
func TestExplain(t *testing.T) {
	p := start(t, false)
	if resp, _ := p.do(http.MethodGet, "/explanation?namespace=default&name=pod/broken", "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %s", resp.Status)
	}
	p.loginOnce()
	for _, c := range []struct {
		name, query string
		code        int
		want        []string
	}{
		{"problem", "namespace=default&name=pod/broken", 200, []string{`"state":"not started"`, `"severity":"problem"`, "imagePullPolicy is Never", "node n (forbidden)", "events (forbidden)"}},
		{"missing", "namespace=default&name=pod/none", 404, []string{"has no pod"}},
		{"forbidden", "namespace=default&name=pod/secret", 403, []string{"reading the Pod"}},
		{"without a name", "namespace=default", 400, []string{"required"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := p.do(http.MethodGet, "/explanation?"+c.query, "", nil)
			if resp.StatusCode != c.code {
				t.Errorf("%s, expected %d: %s", resp.Status, c.code, body)
			}
			for _, want := range c.want {
				if !strings.Contains(body, want) {
					t.Errorf("%q is missing in %s", want, body)
				}
			}
		})
	}
}
