package staticpod

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sink sends its calls to a channel.
type sink chan string

func (s sink) Set(p *v1.Pod) {
	s <- "set " + p.Namespace + "/" + p.Name + " " + p.Spec.Containers[0].Image
}
func (s sink) Remove(types.UID) { s <- "remove" }

func TestURL(t *testing.T) {
	const one = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`
	var answer atomic.Value
	answer.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := answer.Load().(string)
		if r.Header.Get("X-Who") != "me" || text == "" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	s := make(sink, 10)
	u := &URL{URL: server.URL, Header: http.Header{"X-Who": {"me"}}, Every: time.Millisecond, NodeName: "n", Sink: s, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	first, done := make(chan struct{}), make(chan error)
	go func() { done <- u.Run(ctx, func() { close(first) }) }()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-s:
				if got != w {
					t.Fatalf("%q, want %q", got, w)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("no call %q", w)
			}
		}
	}
	answer.Store(one)
	expect("set default/a-n i:1")
	<-first
	answer.Store("") // a failure removes no pods
	answer.Store(`kind: PodList
apiVersion: v1
items:
- metadata: {name: a}
  spec: {containers: [{name: c, image: "i:2"}]}
- metadata: {name: b, namespace: other}
  spec: {containers: [{name: c, image: "i:3"}]}
`)
	expect("remove", "set default/a-n i:2", "set other/b-n i:3")
	answer.Store(`{"kind":"PodList","apiVersion":"v1","items":[]}`)
	expect("remove", "remove")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzDecodeList(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}},null]}`))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decodeList(raw, "http://x", "n") })
}
