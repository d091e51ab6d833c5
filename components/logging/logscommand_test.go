package logging

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLogsCommand runs the command against an API server with constant responses.
func TestLogsCommand(t *testing.T) {
	var path, response string
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.String()
		w.WriteHeader(status)
		fmt.Fprint(w, response)
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte(fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "%s"}}],
		contexts: [{name: c, context: {cluster: c, namespace: shop}}]}`, server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := NewLogsCommand()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append(args, "--kubeconfig="+kubeconfig))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	response = `{"warning":"node b does not respond"}
{"time":"2026-11-28T22:00:00Z","namespace":"shop","pod":"web","container":"c","text":"one\ntwo"}
`
	const prefix = "/apis/logs.hyperkube.io/v1alpha1/"
	for _, c := range []struct{ args, path, out string }{
		{"", prefix + "namespaces/shop/logs", "Warning: node b does not respond\nweb/c  one\nweb/c  two\n"},
		{"-A --timestamps", prefix + "logs", "Warning: node b does not respond\n2026-11-28T22:00:00Z shop/web/c  one\n2026-11-28T22:00:00Z shop/web/c  two\n"},
		{"web -c c -n db", prefix + "namespaces/db/logs?container=c&pod=web", "Warning: node b does not respond\none\ntwo\n"},
		{"-l app=web --grep a|b --tail 3 -o json", prefix + "namespaces/shop/logs?grep=a%7Cb&labelSelector=app%3Dweb&tailLines=3",
			"Warning: node b does not respond\n" + `{"time":"2026-11-28T22:00:00Z","namespace":"shop","pod":"web","container":"c","text":"one\ntwo"}` + "\n"},
		{"--since-time 2026-01-01T00:00:00Z --until 2026-01-02T00:00:00Z -f", "", ""},
		{"--node-logs --file hyperkube --no-prefix", prefix + "nodelogs?file=hyperkube", "Warning: node b does not respond\none\ntwo\n"},
		{"--color always", prefix + "namespaces/shop/logs", "Warning: node b does not respond\n\x1b[33mweb/c\x1b[0m  one\n\x1b[33mweb/c\x1b[0m  two\n"},
	} {
		path = ""
		out, err := run(strings.Fields(c.args)...)
		if path != c.path || (err != nil) != (c.path == "") || out != c.out {
			t.Errorf("%s: %s %q %v, want %s %q", c.args, path, out, err, c.path, c.out)
		}
	}
	for args, want := range map[string]string{
		"a -l b": "either a pod or a selector", "a -A": "with -n instead of -A", "--node-logs -A": "excludes pods", "--file a": "requires --node-logs", "-o yaml": "unknown output format",
		"--color red": "unknown --color", "--since 1h --since-time x": "either --since", "--until 1h -f": "excludes --follow", "--tail -1": "must not be negative", "--until x": "neither a time",
	} {
		if _, err := run(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	for code, want := range map[int]string{
		http.StatusNotFound: "run: hyperkube addon enable logging", http.StatusServiceUnavailable: "agents are not ready", http.StatusForbidden: "no way", http.StatusBadGateway: "502",
	} {
		status, response = code, ""
		if code == http.StatusForbidden {
			response = `{"message":"no way","details":{"group":"logs.hyperkube.io"}}`
		}
		if _, err := run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %s", code, err, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{"": {}, "2h": now.Add(-2 * time.Hour), "2026-01-01T00:00:00Z": now.Add(-12 * time.Hour)} {
		if got, err := parseTime("--until", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
