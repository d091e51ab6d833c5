package nodelogs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestQueries(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"plain": "p", "dotted.log": "d", "own/own.log": "o", "sub/file": "f"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	journal := func(_ context.Context, out io.Writer, args ...string) error {
		if args[0] == "--field" {
			fmt.Fprint(out, "kubelet.service\ncron.service\n")
			return nil
		}
		fmt.Fprintf(out, "%q", args)
		return nil
	}
	h := http.StripPrefix("/logs/", Queries(dir, journal))
	const base = `"--utc" "--no-pager" "--output=short-precise"`
	for _, tc := range []struct {
		path string
		code int
		want string
	}{
		{"sub/file", 200, "f"},
		{"", 200, "dotted.log"},
		{"?query", 400, `query: Invalid value: [""]: may not be empty`},
		{"?query=+", 400, "may not be empty"},
		{"?query=plain", 200, "p"},
		{"?query=dotted", 200, "d"},
		{"?query=own", 200, "o"},
		{"?query=/sub/file", 200, "f"},
		{"?query=/none", 406, "query: Invalid value"},
		{"?query=/../x", 406, "query: Invalid value"},
		{"?query=/out", 406, "query: Invalid value"},
		{"?query=out", 200, "error getting log for out"},
		{"?query=none", 200, "log not found for none"},
		{"?query=plain&tailLines=1", 200, "options present and query resolved to log files for [plain]"},
		{"?query=kubelet", 200, `[` + base + ` "--unit=kubelet"]`},
		{"?query=kubelet&query=cron&tailLines=3&boot=-1&pattern=a.b&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-03T00:00:00Z", 200,
			`[` + base + ` "--since=2026-01-02 02:04:05 UTC" "--until=2026-01-03 00:00:00 UTC" "--pager-end" "--lines=3" "--unit=kubelet" "--unit=cron" "--grep=a.b" "--boot" "-1"]`},
		{"?query=a%20b", 406, "input contains unsupported characters"},
		{"?query=/a&query=b", 406, "cannot specify a file and service"},
		{"?query=/a&query=/b", 406, "cannot specify more than one file"},
		{"?query=/a&boot=0", 406, "cannot specify file with options"},
		{"?boot=0", 406, "query: Required value: cannot be empty with options"},
		{"?query=a&query=b&query=c&query=d&query=e", 406, "query: Too many: 5: must have at most 4 items"},
		{"?query=kubelet&boot=1", 406, "must be less than 1"},
		{"?query=kubelet&boot=x", 400, "boot: Invalid value"},
		{"?query=kubelet&tailLines=100001", 406, "tailLines: Invalid value"},
		{"?query=kubelet&sinceTime=x", 400, "invalid time format"},
		{"?query=kubelet&sinceTime=2026-01-03T00:00:00Z&untilTime=2026-01-02T00:00:00Z", 406, "must be after `sinceTime`"},
		{"?query=kubelet&pattern=(", 406, "pattern: Invalid value"},
		{"sub/file?query=kubelet", 406, "path not allowed in query mode"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/logs/"+tc.path, nil))
		if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s: %d %s, want %d %s", tc.path, w.Code, w.Body, tc.code, tc.want)
		}
	}
}
