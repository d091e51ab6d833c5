package h2

import (
	"encoding/xml"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// specFailures are the cases of h2spec that fail, by section and number, and why that is right.
var specFailures = map[string]string{
	"http2/8.1.2.2/1": connectionHeaders,
	"http2/8.1.2.2/2": connectionHeaders,
}

const connectionHeaders = "RFC 9113 section 8.1.1 lets a server respond to a malformed request before it closes the stream. " +
	"As net/http's server, this one responds with 400 and the name of the header, which a bare RST_STREAM cannot carry."

// specReport is h2spec's report in the format of JUnit.
type specReport struct {
	Suites []struct {
		Section string `xml:"package,attr"`
		Cases   []struct {
			Title   string  `xml:"classname,attr"`
			Failure *string `xml:"failure"`
			Error   *string `xml:"error"`
			Skipped *string `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// TestSpec runs h2spec, whose path is in HYPERKUBE_H2SPEC. scripts/h2spec builds it and prints its path.
func TestSpec(t *testing.T) {
	t.Parallel()
	tool := os.Getenv("HYPERKUBE_H2SPEC")
	if tool == "" {
		t.Skip("HYPERKUBE_H2SPEC is not set")
	}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "some data") }, Config{}, nil)
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.xml")
	// h2spec exits with 1 when a case fails, so the report counts. Its header fields have to be longer than by default
	// to exceed the maximum frame size of this server.
	out, runErr := exec.Command(tool, "--tls", "--insecure", "--host", host, "--port", port, "--max-header-length", "16000", "--timeout", "5",
		"--junit-report", file).CombinedOutput()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("running h2spec: %v: %v\n%s", runErr, err, out)
	}
	var report specReport
	if err := xml.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	cases, passed := 0, 0
	failed := map[string]bool{}
	for _, suite := range report.Suites {
		for i, c := range suite.Cases {
			cases++
			if c.Failure == nil && c.Error == nil && c.Skipped == nil {
				passed++
				continue
			}
			name := fmt.Sprintf("%s/%d", suite.Section, i+1)
			failed[name] = true
			if specFailures[name] == "" {
				t.Errorf("%s fails: %s", name, strings.TrimSpace(c.Title))
			}
		}
	}
	for name, reason := range specFailures {
		if !failed[name] {
			t.Errorf("%s passes, and is expected to fail: %s", name, reason)
		}
	}
	// Fewer cases mean that h2spec did not run all of them.
	if cases < 145 {
		t.Errorf("%d cases, want 145", cases)
	}
	t.Logf("%d of %d cases pass", passed, cases)
}
