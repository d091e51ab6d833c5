package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// script is an API server that responds to requests in the order of its steps.
type script struct {
	t  *testing.T
	mu sync.Mutex
	// steps are the expected requests, as part of the query, and the responses to them. A response may be a status code and a
	// message. The last watch stays open.
	steps []step
}

type step struct {
	query    string
	code     int
	response string
	open     bool // the watch stays open after the response
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if len(s.steps) == 0 {
		s.mu.Unlock()
		s.t.Errorf("unexpected request %s", r.URL)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	next := s.steps[0]
	s.steps = s.steps[1:]
	s.mu.Unlock()
	query, _ := url.QueryUnescape(r.URL.RawQuery)
	for part := range strings.SplitSeq(next.query, "&") {
		if !strings.Contains("&"+query+"&", "&"+part+"&") {
			s.t.Errorf("the query is %s, expected %s", query, next.query)
		}
	}
	if next.code != 0 {
		w.WriteHeader(next.code)
	}
	fmt.Fprintln(w, next.response)
	if next.open {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// connect serves a stream of the API server api and returns the connection of the page.
func connect(t *testing.T, api http.Handler) *websocket.Conn {
	t.Helper()
	upstream := httptest.NewServer(api)
	t.Cleanup(upstream.Close)
	at, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	var upgrader websocket.Upgrader
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		Serve(ctx, conn, Config{Client: client, URL: at, Log: slog.New(slog.DiscardHandler)})
	}))
	t.Cleanup(server.Close)
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		<-served
	})
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// state is what a page knows about one watch. It applies messages like the page does.
type state struct {
	objects map[string]string
	next    map[string]string
	synced  bool
	columns string
	failure *Failure
}

func (s *state) apply(m message) {
	if m.Begin {
		if s.synced {
			s.next = map[string]string{}
		} else {
			s.objects = map[string]string{}
		}
	}
	if m.Columns != nil {
		s.columns = string(m.Columns)
	}
	target := s.objects
	if s.next != nil {
		target = s.next
	}
	for _, o := range m.Objects {
		target[o.Key] = string(o.Value)
	}
	for _, key := range m.Deleted {
		delete(target, key)
	}
	if m.Synced {
		if s.next != nil {
			s.objects, s.next = s.next, nil
		}
		s.synced = true
	}
	s.failure = m.Error
}

// until reads messages until the state satisfies a condition.
func (s *state) until(t *testing.T, conn *websocket.Conn, condition func() bool) {
	t.Helper()
	for !condition() {
		var batch []message
		if err := conn.ReadJSON(&batch); err != nil {
			t.Fatalf("%v, objects %v, failure %v", err, s.objects, s.failure)
		}
		for _, m := range batch {
			s.apply(m)
		}
	}
}

func (s *state) keys() string {
	var keys []string
	for key := range s.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func item(name, version string) string {
	return fmt.Sprintf(`{"metadata":{"uid":%q,"name":%q,"resourceVersion":%q,"managedFields":[{"manager":"m"}]},"spec":{"n":1}}`, name, name, version)
}

func page(version, next string, items ...string) string {
	return fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`, version, next, strings.Join(items, ","))
}

func change(kind, object string) string { return fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object) }

func open(t *testing.T, conn *websocket.Conn, view View) {
	t.Helper()
	if err := conn.WriteJSON(request{Op: "open", ID: 1, Path: "/api/v1/pods", Labels: "a=b", View: view}); err != nil {
		t.Fatal(err)
	}
}

// TestWatch lists in pages, watches, continues a watch that ended, and lists again when the version has expired.
func TestWatch(t *testing.T) {
	api := &script{t: t, steps: []step{
		{query: "limit=500&labelSelector=a=b", response: page("5", "more", item("a", "1"), item("b", "2"))},
		{query: "limit=500&continue=more", response: page("5", "", item("c", "3"))},
		{query: "watch=true&resourceVersion=5&allowWatchBookmarks=true&labelSelector=a=b", response: change("ADDED", item("d", "6")) +
			change("DELETED", item("a", "7")) + change("BOOKMARK", `{"metadata":{"resourceVersion":"9"}}`)},
		{query: "watch=true&resourceVersion=9", response: change("MODIFIED", item("b", "10"))},
		{query: "watch=true&resourceVersion=10", response: change("ERROR", `{"kind":"Status","code":410,"message":"too old"}`)},
		{query: "limit=500", response: page("20", "", item("b", "10"), item("e", "11"))},
		{query: "watch=true&resourceVersion=20", response: change("ADDED", item("f", "21")), open: true},
	}}
	conn := connect(t, api)
	open(t, conn, Full)
	var s state
	s.until(t, conn, func() bool { return s.objects["f"] != "" })
	if got := s.keys(); got != "b e f" {
		t.Errorf("the page has the objects %s", got)
	}
	if got := s.objects["f"]; strings.Contains(got, "managedFields") || !strings.Contains(got, `"spec":{"n":1}`) {
		t.Errorf("the page has received %s", got)
	}
}

// TestExpiredResponse lists again when the response to a watch is 410 Gone.
func TestExpiredResponse(t *testing.T) {
	conn := connect(t, &script{t: t, steps: []step{
		{query: "limit=500", response: page("5", "", item("a", "1"))},
		{query: "watch=true&resourceVersion=5", code: http.StatusGone, response: `{"kind":"Status","code":410}`},
		{query: "limit=500", response: page("6", "", item("b", "6"))},
		{query: "watch=true&resourceVersion=6", open: true},
	}})
	open(t, conn, Full)
	var s state
	s.until(t, conn, func() bool { return s.keys() == "b" && s.synced })
}

// TestForbidden checks that a refused watch is not repeated, and that the page can open it again.
func TestForbidden(t *testing.T) {
	conn := connect(t, &script{t: t, steps: []step{
		{query: "limit=500", code: http.StatusForbidden, response: `{"kind":"Status","code":403,"message":"pods is forbidden"}`},
		{query: "limit=500", response: page("5", "", item("a", "1"))},
		{query: "watch=true", open: true},
	}})
	open(t, conn, Full)
	var s state
	s.until(t, conn, func() bool { return s.failure != nil })
	if *s.failure != (Failure{Code: 403, Message: "pods is forbidden"}) {
		t.Errorf("the page has received %+v", *s.failure)
	}
	open(t, conn, Full)
	s.until(t, conn, func() bool { return s.keys() == "a" && s.failure == nil })
}

// TestRetry repeats a request that has failed for now.
func TestRetry(t *testing.T) {
	conn := connect(t, &script{t: t, steps: []step{
		{query: "limit=500", code: http.StatusServiceUnavailable, response: `unavailable`},
		{query: "limit=500", response: page("5", "", item("a", "1"))},
		{query: "watch=true", open: true},
	}})
	open(t, conn, Full)
	var s state
	s.until(t, conn, func() bool { return s.failure != nil })
	if s.failure.Code != 503 || !s.failure.Retries {
		t.Errorf("the page has received %+v", *s.failure)
	}
	s.until(t, conn, func() bool { return s.keys() == "a" && s.failure == nil })
}

func TestTable(t *testing.T) {
	rowOf := func(name string) string {
		return fmt.Sprintf(`{"cells":[%q,"1/1"],"object":{"metadata":{"uid":%q,"name":%q,"namespace":"n","resourceVersion":"8","labels":{"a":"b"},"creationTimestamp":"2026-01-01T00:00:00Z"}}}`, name, name, name)
	}
	conn := connect(t, &script{t: t, steps: []step{
		{query: "limit=500", response: `{"metadata":{"resourceVersion":"5"},"columnDefinitions":[{"name":"Name"},{"name":"Ready"}],"rows":[` + rowOf("a") + `]}`},
		{query: "watch=true&resourceVersion=5", response: change("ADDED", `{"rows":[`+rowOf("b")+`]}`)},
		{query: "watch=true&resourceVersion=8", open: true},
	}})
	open(t, conn, Table)
	var s state
	s.until(t, conn, func() bool { return s.keys() == "a b" })
	if want := `{"name":"a","ns":"n","created":"2026-01-01T00:00:00Z","labels":{"a":"b"},"cells":["a","1/1"]}`; s.objects["a"] != want {
		t.Errorf("the row is %s, expected %s", s.objects["a"], want)
	}
	if s.columns != `[{"name":"Name"},{"name":"Ready"}]` {
		t.Errorf("the columns are %s", s.columns)
	}
}

func TestRefusedRequests(t *testing.T) {
	for _, c := range []struct {
		name string
		req  request
	}{
		{"other path", request{Path: "/metrics", View: Full}},
		{"parent directory", request{Path: "/api/../metrics", View: Full}},
		{"query", request{Path: "/api/v1/pods", View: "raw"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := connect(t, &script{t: t})
			c.req.Op, c.req.ID = "open", 1
			if err := conn.WriteJSON(c.req); err != nil {
				t.Fatal(err)
			}
			var s state
			s.until(t, conn, func() bool { return s.failure != nil })
			if s.failure.Code != http.StatusBadRequest || s.failure.Retries {
				t.Errorf("%+v", s.failure)
			}
		})
	}
}

// TestMerge checks that changes which were not sent are merged, and that batches are bounded.
func TestMerge(t *testing.T) {
	out := newOutbox()
	q := out.open(1)
	q.startList()
	for i := range 1200 {
		q.put(Object{Key: strconv.Itoa(i), Value: json.RawMessage(`1`)})
	}
	q.put(Object{Key: "0", Value: json.RawMessage(`2`)})
	q.delete("1")
	q.endList()
	var s state
	batches := 0
	for batch := out.take(); len(batch) > 0; batch = out.take() {
		batches++
		for _, m := range batch {
			if n := len(m.Objects) + len(m.Deleted); n > batchSize {
				t.Errorf("a batch has %d changes", n)
			}
			s.apply(m)
		}
	}
	if batches != 3 || len(s.objects) != 1199 || s.objects["0"] != "2" || !s.synced {
		t.Errorf("%d batches, %d objects, the first is %s", batches, len(s.objects), s.objects["0"])
	}
}

func TestPodSummary(t *testing.T) {
	pod := func(meta, spec, status string) string {
		return `{"metadata":{"name":"p",` + meta + `"namespace":"n"},"spec":{` + spec + `"nodeName":"node"},"status":{` + status + `"message":""}}`
	}
	ready := `"phase":"Running","conditions":[{"type":"Ready","status":"True"}],`
	for _, c := range []struct{ name, raw, want string }{
		{"running", pod("", "", ready), `"state":"running"`},
		{"completed", pod("", "", `"phase":"Succeeded",`), `"state":"done"`},
		{"terminating", pod(`"deletionTimestamp":"2026-01-01T00:00:00Z",`, "", ready), `"state":"terminating","reason":"Terminating"`},
		{"not ready", pod("", "", `"phase":"Running","conditions":[{"type":"Ready","status":"False","message":"m"}],`), `"state":"unready","reason":"NotReady","message":"m"`},
		{"creating", pod("", "", `"phase":"Pending","containerStatuses":[{"state":{"waiting":{"reason":"ContainerCreating"}}}],`), `"state":"pending"`},
		{"unschedulable", pod("", "", `"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"no"}],`), `"state":"pending","reason":"Unschedulable","message":"no"`},
		{
			"crash loop", pod("", "", `"phase":"Running","containerStatuses":[{"name":"c","restartCount":3,"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"reason":"OOMKilled","exitCode":137}}}],`),
			`"state":"failed","reason":"CrashLoopBackOff","message":"container c: OOMKilled, exit code 137","restarts":3`,
		},
		{"evicted", pod("", "", `"phase":"Failed","reason":"Evicted",`), `"state":"failed","reason":"Evicted"`},
		{
			"requests", pod("", `"containers":[{"resources":{"requests":{"cpu":"100m","memory":"1Mi"}}}],"initContainers":[{"resources":{"requests":{"cpu":"1"}}},{"restartPolicy":"Always","resources":{"requests":{"memory":"1Mi"}}}],`, ready),
			`"state":"running","cpu":1000,"mem":2097152`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			tile, err := podSummary(json.RawMessage(c.raw))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(tile)
			if want := `{"name":"p","ns":"n","node":"node",` + c.want + `}`; string(got) != want {
				t.Errorf("%s, expected %s", got, want)
			}
		})
	}
}

func TestNodeSummary(t *testing.T) {
	raw := `{"metadata":{"name":"n","labels":{"node-role.kubernetes.io/worker":"","node-role.kubernetes.io/control-plane":""}},"spec":{"unschedulable":true},
		"status":{"allocatable":{"cpu":"2","memory":"1Ki","pods":"110"},"nodeInfo":{"kubeletVersion":"v1"},
		"conditions":[{"type":"Ready","status":"Unknown","message":"m"},{"type":"DiskPressure","status":"True"},{"type":"PIDPressure","status":"False"}]}}`
	tile, err := nodeSummary(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(tile)
	want := `{"name":"n","ready":false,"cordoned":true,"roles":["control-plane","worker"],"version":"v1","cpu":2000,"mem":1024,"pods":110,` +
		`"problems":[{"type":"Ready","status":"Unknown","message":"m"},{"type":"DiskPressure","status":"True"}]}`
	if string(got) != want {
		t.Errorf("%s, expected %s", got, want)
	}
}
