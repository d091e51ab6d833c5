package sink

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hyperkube/components/logging/record"
	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/testing/testwait"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	web   = &record.Source{Node: "n1", Namespace: "shop", Pod: "web-1", UID: "u1", Container: "web", Labels: map[string]string{"app": "web"}}
	db    = &record.Source{Node: "n1", Namespace: "db", Pod: "db-0", UID: "u2", Container: "db"}
	node  = &record.Source{Node: "n1", File: "hyperkube"}
)

// fake is a sink that responds as the test requires, and stores the numbers of records.
type fake struct {
	mu sync.Mutex
	// respond returns the status and the body for the n-th request, from 0, with the texts of its records. It returns keep if the server stores them.
	respond  func(n int, texts []string) (status int, body string, keep bool)
	header   http.Header
	requests int
	bodies   []string
	got      map[string]int
	changed  chan struct{}
}

var recordText = regexp.MustCompile(`record \d+`)

func newFake(t *testing.T) (*fake, string) {
	f := &fake{got: map[string]int{}, changed: make(chan struct{}, 1), header: http.Header{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(z)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	texts := recordText.FindAllString(string(body), -1)
	status, text, keep := http.StatusOK, "", true
	if f.respond != nil {
		status, text, keep = f.respond(f.requests, texts)
	}
	f.requests++
	f.bodies = append(f.bodies, string(body))
	if keep {
		for _, t := range texts {
			f.got[t]++
		}
	}
	for name, values := range f.header {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	fmt.Fprint(w, text)
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// until waits until done returns true, which is called with mu locked.
func (f *fake) until(t *testing.T, done func() bool) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		f.mu.Lock()
		ok := done()
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-f.changed:
		case <-timeout:
			t.Fatalf("%d requests, %d records", f.requests, len(f.got))
		}
	}
}

// env is a store with a sink.
type env struct {
	t     *testing.T
	dir   string
	store *store.Store
	total int
}

func newEnv(t *testing.T, cfg store.Config) *env {
	e := &env{t: t, dir: t.TempDir()}
	cfg.Dir, cfg.Log = filepath.Join(e.dir, "store"), quiet
	var err error
	if e.store, err = store.Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.store.Close() })
	return e
}

func (e *env) add(src *record.Source, count int) {
	e.t.Helper()
	for range count {
		e.store.Append(src, record.Record{Time: int64(1e18) + int64(e.total), Stream: record.Stdout, Text: []byte(fmt.Sprint("record ", e.total))})
		e.total++
	}
	if err := e.store.Flush(); err != nil {
		e.t.Fatal(err)
	}
}

// start runs a worker and returns it, and a function that stops it.
func (e *env) start(s settings.Sink) (*Worker, func()) {
	e.t.Helper()
	w, err := New(Config{Settings: s, Dir: e.dir, Store: e.store, FirstRetry: time.Millisecond, LastRetry: 20 * time.Millisecond, Log: quiet})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
	})
	e.t.Cleanup(stop)
	return w, stop
}

// TestUnavailable checks that all records arrive although the server fails, asks to wait, loses acknowledgements, and the worker restarts.
func TestUnavailable(t *testing.T) {
	for _, kind := range []string{settings.OTLP, settings.Loki, settings.Elasticsearch} {
		t.Run(kind, func(t *testing.T) {
			f, url := newFake(t)
			f.header.Set("Retry-After", "0")
			f.respond = func(n int, texts []string) (int, string, bool) {
				switch n % 5 {
				case 0:
					return http.StatusServiceUnavailable, "", false
				case 1:
					return http.StatusTooManyRequests, "", false
				case 2:
					return http.StatusInternalServerError, "", true // stored, but not acknowledged
				}
				return http.StatusOK, `{}`, true
			}
			e := newEnv(t, store.Config{})
			s := settings.Sink{Name: "s", Type: kind, URL: url}
			for range 10 {
				_, stop := e.start(s)
				e.add(web, 10)
				e.add(db, 5)
				f.until(t, func() bool { return len(f.got) >= e.total-5 })
				stop()
			}
			w, _ := e.start(s)
			e.add(web, 1)
			f.until(t, func() bool { return len(f.got) == e.total })
			testwait.Until(t, "acknowledgement", func() bool { return w.Stats().LagBytes == 0 })
		})
	}
}

// TestBuffer checks that records wait in the store while the server is unavailable, that those which the store removes are counted, and the lag.
func TestBuffer(t *testing.T) {
	f, url := newFake(t)
	down := true
	f.respond = func(int, []string) (int, string, bool) {
		if down {
			return http.StatusServiceUnavailable, "", false
		}
		return http.StatusNoContent, "", true
	}
	e := newEnv(t, store.Config{MaxBytes: 8000, SegmentBytes: 1000})
	w, _ := e.start(settings.Sink{Name: "s", Type: settings.Loki, URL: url})
	for range 100 {
		e.add(web, 20)
	}
	f.until(t, func() bool { return f.requests > 2 })
	if s := w.Stats(); s.LagBytes == 0 || s.LagSeconds == 0 || s.Failures == 0 || s.Sent != 0 {
		t.Errorf("%+v", s)
	}
	f.mu.Lock()
	down = false
	f.mu.Unlock()
	f.until(t, func() bool { return f.got[fmt.Sprint("record ", e.total-1)] > 0 })
	e.add(web, 1)
	f.until(t, func() bool { return f.got[fmt.Sprint("record ", e.total-1)] > 0 })
	s := w.Stats()
	if s.Removed == 0 || int(s.Removed)+len(f.got) != e.total {
		t.Errorf("%d of %d records sent, %+v", len(f.got), e.total, s)
	}
}

// TestRejected checks that a record which the server does not accept does not block the others.
func TestRejected(t *testing.T) {
	t.Run("loki", func(t *testing.T) {
		f, url := newFake(t)
		f.respond = func(_ int, texts []string) (int, string, bool) {
			if slices.Contains(texts, "record 3") {
				return http.StatusBadRequest, "timestamp too old", false
			}
			return http.StatusNoContent, "", true
		}
		e := newEnv(t, store.Config{})
		w, stop := e.start(settings.Sink{Name: "s", Type: settings.Loki, URL: url})
		e.add(web, 10)
		f.until(t, func() bool { return len(f.got) == 9 })
		e.add(web, 1)
		f.until(t, func() bool { return len(f.got) == 10 })
		stop()
		if s := w.Stats(); s.Rejected != 1 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("elasticsearch", func(t *testing.T) {
		f, url := newFake(t)
		f.respond = func(n int, texts []string) (int, string, bool) {
			var items []string
			for _, text := range texts {
				status := 201
				switch {
				case text == "record 3":
					status = 400
				case text == "record 5" && n == 0:
					status = 429
				case n > 0 && text != "record 5":
					status = 409
				}
				items = append(items, fmt.Sprintf(`{"create":{"status":%d}}`, status))
			}
			return http.StatusOK, `{"errors":true,"items":[` + strings.Join(items, ",") + `]}`, true
		}
		e := newEnv(t, store.Config{})
		w, stop := e.start(settings.Sink{Name: "s", Type: settings.Elasticsearch, URL: url})
		e.add(web, 10)
		f.until(t, func() bool { return f.got["record 5"] == 2 })
		e.add(web, 1)
		f.until(t, func() bool { return f.got["record 10"] == 1 })
		stop()
		if s := w.Stats(); s.Rejected != 1 || f.got["record 4"] != 1 {
			t.Errorf("%+v %v", s, f.got)
		}
	})
}

// TestFormats checks the bodies of requests.
func TestFormats(t *testing.T) {
	entries := []store.Entry{
		{Source: web, Record: record.Record{Time: 1700000000000000001, Stream: record.Stderr, Text: []byte("a \"b\" \xff")}},
		{Source: node, Record: record.Record{Time: 1700000000000000002, Text: []byte("c")}},
	}
	for name, want := range map[string]string{
		"loki": `{"streams":[{"stream":{"app":"web","container":"web","namespace":"shop","node":"n1","pod":"web-1","stream":"stderr"},"values":[["1700000000000000001","a \"b\" \ufffd"]]},` +
			`{"stream":{"app":"hyperkube","file":"hyperkube","node":"n1"},"values":[["1700000000000000002","c"]]}]}`,
		"otlp": `{"resourceLogs":[{"resource":{"attributes":[{"key":"k8s.node.name","value":{"stringValue":"n1"}},{"key":"k8s.namespace.name","value":{"stringValue":"shop"}},` +
			`{"key":"k8s.pod.name","value":{"stringValue":"web-1"}},{"key":"k8s.pod.uid","value":{"stringValue":"u1"}},{"key":"k8s.container.name","value":{"stringValue":"web"}},` +
			`{"key":"service.name","value":{"stringValue":"web"}},{"key":"k8s.pod.label.app","value":{"stringValue":"web"}}]},` +
			`"scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000001","observedTimeUnixNano":"N","body":{"stringValue":"a \"b\" \ufffd"},"attributes":[{"key":"log.iostream","value":{"stringValue":"stderr"}}]}]}]},` +
			`{"resource":{"attributes":[{"key":"k8s.node.name","value":{"stringValue":"n1"}},{"key":"service.name","value":{"stringValue":"hyperkube"}}]},` +
			`"scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000002","observedTimeUnixNano":"N","body":{"stringValue":"c"}}]}]}]}`,
		"elasticsearch": `{"create":{"_id":"ID","_index":"logs-hyperkube"}}` + "\n" +
			`{"@timestamp":"2023-11-14T22:13:20.000000001Z","node":"n1","namespace":"shop","pod":"web-1","uid":"u1","container":"web","stream":"stderr","labels":{"app":"web"},"message":"a \"b\" \ufffd"}` + "\n" +
			`{"create":{"_id":"ID","_index":"logs-hyperkube"}}` + "\n" + `{"@timestamp":"2023-11-14T22:13:20.000000002Z","node":"n1","file":"hyperkube","message":"c"}`,
	} {
		var b strings.Builder
		if err := map[string]protocol{"loki": loki{}, "otlp": otlp{}, "elasticsearch": newElasticsearch("")}[name].encode(&b, entries); err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile(`"observedTimeUnixNano":"\d+"`).ReplaceAllString(b.String(), `"observedTimeUnixNano":"N"`)
		got = strings.TrimSpace(regexp.MustCompile(`"_id":"[-_A-Za-z0-9]{20}"`).ReplaceAllString(got, `"_id":"ID"`))
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	if a, b := documentID(entries[0]), documentID(entries[1]); a == b || a != documentID(entries[0]) {
		t.Errorf("IDs %s and %s", a, b)
	}
	for body, want := range map[string]int{"": 0, "{}": 0, `{"partialSuccess":{"rejectedLogRecords":"3"}}`: 3, `{"partialSuccess":{"rejectedLogRecords":2}}`: 2, "x": 0} {
		if n, _, err := (otlp{}).accepted([]byte(body), nil); n != want || err != nil {
			t.Errorf("%q: %d, %v", body, n, err)
		}
	}
}

// TestFile checks that a file has every record once, also after a crash in the middle of a line, and that it is rotated.
func TestFile(t *testing.T) {
	e := newEnv(t, store.Config{})
	s := settings.Sink{Name: "f", Type: settings.File, MaxBytes: 3000, Select: settings.Selector{Namespace: "shop"}}
	path := filepath.Join(e.dir, "f.jsonl")
	read := func() (out []string) {
		for _, name := range []string{path + ".1", path} {
			data, _ := os.ReadFile(name)
			for line := range strings.Lines(string(data)) {
				var d Document
				if err := json.Unmarshal([]byte(line), &d); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				out = append(out, d.Message)
			}
		}
		return out
	}
	w, stop := e.start(s)
	wait := func() {
		t.Helper()
		testwait.Until(t, "the file is written", func() bool { return w.Stats().LagBytes == 0 })
	}
	e.add(web, 5)
	e.add(db, 5)
	wait()
	stop()
	if got := strings.Join(read(), ","); got != "record 0,record 1,record 2,record 3,record 4" {
		t.Errorf("%s", got)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.WriteString(`{"incomplete`)
	file.Close()
	w, _ = e.start(s)
	for range 6 {
		e.add(web, 5)
		wait()
	}
	got := read()
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() < 3000 {
		t.Errorf("rotated file: %v", err)
	}
	if got[len(got)-1] != fmt.Sprint("record ", e.total-1) || !slices.IsSortedFunc(got, func(a, b string) int { return number(a) - number(b) }) {
		t.Errorf("%q", got)
	}
}

func number(text string) (n int) {
	_, _ = fmt.Sscanf(text, "record %d", &n)
	return n
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "Thu, 01 Jan 2026 00:01:00 GMT": time.Minute, "Thu, 01 Jan 2025 00:01:00 GMT": 0} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
