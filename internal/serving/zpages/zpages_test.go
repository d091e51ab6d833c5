package zpages

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func ask(h http.Handler, method, path, accept, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPages(t *testing.T) {
	set := pflag.NewFlagSet("x", pflag.ContinueOnError)
	set.Int("n", 3, "")
	set.String("a", "", "")
	if err := set.Parse([]string{"--a=b"}); err != nil {
		t.Fatal(err)
	}
	status := Statusz("it", "/metrics", "/healthz/etcd", "/healthz", "/api/v1", "/apis", "/")
	flags := Flagz("it", FlagsOf(set))
	for _, c := range []struct {
		page   http.Handler
		accept string
		code   int
		media  string
		want   string
	}{
		{status, "", 200, "text/plain; charset=utf-8", "\nPaths: /healthz /metrics\n"},
		{status, "*/*", 200, "text/plain; charset=utf-8", "\nit statusz\nWarning: "},
		{status, "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 200, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz", `"kind": "Statusz"`},
		{status, "application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz", 200, "application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz", "apiVersion: config.k8s.io/v1alpha1\n"},
		{status, "application/json;v=v1;g=config.k8s.io;as=Statusz, text/plain", 200, "text/plain; charset=utf-8", "it statusz"},
		{status, "application/json", 406, "application/json", "only the following media types are accepted: application/json, application/yaml, text/plain"},
		{status, "application/yaml, application/json", 406, "application/yaml", "reason: NotAcceptable\n"},
		{flags, "text/plain", 200, "text/plain; charset=utf-8", "\na=b\nn=3\n"},
		{flags, "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 406, "application/json", "NotAcceptable"},
		{flags, "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz", `"n": "3"`},
	} {
		w := ask(c.page, "GET", "/", c.accept, "")
		if w.Code != c.code || w.Header().Get("Content-Type") != c.media || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%q: %d %s %s", c.accept, w.Code, w.Header(), w.Body)
		}
	}
	if w := ask(Configz("x", func() any { return map[string]int{"a": 1} }), "GET", "/configz", "", ""); w.Body.String() != `{"x":{"a":1}}` {
		t.Error(w.Body)
	}
}

func TestVerbosity(t *testing.T) {
	var level slog.LevelVar
	paths := DebugFlags(&level)
	for _, c := range []struct {
		method, body string
		code         int
		want         string
		level        slog.Level
	}{
		{"GET", "", 406, "unsupported http method\n", slog.LevelInfo},
		{"PUT", "abc", 400, "strconv.ParseUint: parsing \"abc\": invalid syntax\n", slog.LevelInfo},
		{"PUT", "5", 200, "successfully set klog.logging.verbosity to 5\n", slog.LevelDebug},
		{"PUT", strings.Repeat("1", 100), 400, "error reading request body: http: request body too large\n", slog.LevelDebug},
		{"PUT", "2", 200, "successfully set klog.logging.verbosity to 2\n", slog.LevelInfo},
	} {
		w := ask(paths["/debug/flags/v"], c.method, "/debug/flags/v", "", c.body)
		if w.Code != c.code || w.Body.String() != c.want || level.Level() != c.level {
			t.Errorf("%s %q: %d %q, level %v", c.method, c.body, w.Code, w.Body, level.Level())
		}
	}
	if w := ask(paths["/debug/flags"], "GET", "/debug/flags", "", ""); !strings.Contains(w.Body.String(), "<tr>v<br>") {
		t.Error(w.Body)
	}
}

// TestProfiles checks that the pages are served without a trailing slash, and that the command line
// is not served.
func TestProfiles(t *testing.T) {
	mux := http.NewServeMux()
	for path, page := range Profiles() {
		mux.Handle(path, page)
	}
	if w := ask(mux, "GET", "/debug/pprof", "", ""); w.Code != http.StatusFound || w.Header().Get("Location") != "/debug/pprof/" {
		t.Errorf("%d %s", w.Code, w.Header())
	}
	if w := ask(mux, "GET", "/debug/pprof/cmdline", "", ""); w.Code != http.StatusNotFound {
		t.Errorf("the command line: %d", w.Code)
	}
}
