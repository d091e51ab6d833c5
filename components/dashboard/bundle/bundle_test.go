package bundle

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func request(t *testing.T, path, encoding string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	resp := w.Result()
	var body io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(body); err != nil {
			t.Fatal(err)
		}
	}
	data, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(data)
}

// TestHandler loads the page and everything that it refers to, with and without compression.
func TestHandler(t *testing.T) {
	for _, encoding := range []string{"", "gzip", "br, gzip;q=0.5", "gzip;q=0"} {
		resp, page := request(t, "/r/core/v1/pods", encoding)
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
			t.Fatalf("%s %v", resp.Status, resp.Header)
		}
		if strings.Contains(page, "<style") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(page) {
			t.Error("the page contains inline code")
		}
		references := regexp.MustCompile(`"(/assets/[^"]+)"`).FindAllStringSubmatch(page, -1)
		if len(references) != 2 {
			t.Fatalf("the page refers to %v", references)
		}
		for _, r := range references {
			resp, body := request(t, r[1], encoding)
			if resp.StatusCode != http.StatusOK || len(body) < 1000 || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s: %s, %d bytes, %v", r[1], resp.Status, len(body), resp.Header)
			}
		}
	}
	for _, path := range []string{"/assets/", "/assets/none.js", "/assets/../bundle.go"} {
		if resp, _ := request(t, path, "gzip"); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// TestSize checks the limit of the compressed bundle.
func TestSize(t *testing.T) {
	entries, err := files.ReadDir("files")
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 1536<<10 {
		t.Errorf("the bundle has %d bytes", total)
	}
}
