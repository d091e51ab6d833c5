package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	manyNodes = 5000
	manyPods  = 20_000
)

// large is an API server with many objects. It serves what the overview and the list of pods request.
type large struct{ nodes, pods []json.RawMessage }

func newLarge() *large {
	l := &large{}
	for i := range manyNodes {
		l.nodes = append(l.nodes, json.RawMessage(fmt.Sprintf(`{"metadata":{"uid":"n%d","name":"node-%04d","resourceVersion":"1"},"status":{
			"allocatable":{"cpu":"8","memory":"32Gi","pods":"110"},"conditions":[{"type":"Ready","status":"True"}]}}`, i, i)))
	}
	for i := range manyPods {
		status := `"phase":"Running","conditions":[{"type":"Ready","status":"True"}]`
		if i%100 == 0 {
			status = `"phase":"Running","containerStatuses":[{"name":"c","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]`
		}
		l.pods = append(l.pods, json.RawMessage(fmt.Sprintf(`{"metadata":{"uid":"p%d","name":"pod-%05d","namespace":"default","resourceVersion":"1","creationTimestamp":"2026-01-01T00:00:00Z"},
			"spec":{"nodeName":"node-%04d","containers":[{"name":"c","resources":{"requests":{"cpu":"100m","memory":"64Mi"}}}]},"status":{%s}}`, i, i, i%manyNodes, status)))
	}
	return l
}

func (l *large) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") != "" {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	all := map[string][]json.RawMessage{"/api/v1/nodes": l.nodes, "/api/v1/pods": l.pods}[r.URL.Path]
	switch {
	case r.URL.Path == "/api":
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{},"versions":[{"version":"v1","resources":[
			{"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":["list","watch"]}]}]}]}`)
		return
	case r.URL.Path == "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[]}`)
		return
	case all == nil:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","code":404,"message":"not found"}`)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	to, next := min(from+limit, len(all)), ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	if r.Header.Get("Accept") == "application/json" {
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": "1", "continue": next}, "items": all[from:to]})
		return
	}
	var rows []any
	for i := from; i < to; i++ {
		rows = append(rows, map[string]any{"cells": []any{fmt.Sprintf("pod-%05d", i), "Running"}, "object": all[i]})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Table", "metadata": map[string]string{"resourceVersion": "1", "continue": next}, "rows": rows,
		"columnDefinitions": []any{map[string]any{"name": "Name", "type": "string"}, map[string]any{"name": "Status", "type": "string"}},
	})
}

// watchTasks makes the page record the durations of tasks of the main thread that take more than 50 ms.
const watchTasks = `(window.tasks = [], new PerformanceObserver((l) => window.tasks.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ entryTypes: ["longtask"] }), true)`

// TestScale shows 5,000 nodes with 20,000 pods. It checks that only the visible ones are rendered, and logs how long the
// page takes.
func TestScale(t *testing.T) {
	if binary == "" {
		t.Skip("$HYPERKUBE_E2E is not set")
	}
	api := httptest.NewServer(newLarge())
	defer api.Close()
	defer api.CloseClientConnections()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"large","clusters":[{"name":"c","cluster":{"server":%q}}],
		"users":[{"name":"u","user":{}}],"contexts":[{"name":"large","context":{"cluster":"c","user":"u"}}]}`, api.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newTab(t, serve(t, "--kubeconfig", file))
	b.see("5000 of 5000 ready")
	b.see("200 failing, 19800 running")

	begin := time.Now()
	b.open("/")
	b.until(`document.querySelector("h1")`)
	content := time.Since(begin)
	b.until(watchTasks)
	b.see("200 failing, 19800 running")
	complete := time.Since(begin)
	loading := b.eval(`JSON.stringify(tasks)`)
	b.until(`(tasks.length = 0, true)`)
	b.until(`(window.frames = 0, (function scroll() { document.querySelector("main").scrollBy(0, 400); if (++frames < 120) requestAnimationFrame(scroll); })(), true)`)
	b.until(`frames >= 120`)
	b.run(chromedp.Sleep(300 * time.Millisecond))
	scrolling := b.eval(`JSON.stringify(tasks)`)
	if n := b.eval(`String(document.querySelectorAll(".node").length)`); len(n) > 2 {
		t.Errorf("%s nodes are rendered", n)
	}
	b.shot("scale-overview")

	begin = time.Now()
	b.open("/r/core/v1/pods?sort=Name&desc=1")
	b.until(watchTasks)
	b.see("pod-19999")
	b.until(`document.querySelector(".page-head .muted").textContent.trim() === "20000"`)
	list := time.Since(begin)
	b.until(`(tasks.length = 0, window.frames = 0, (function scroll() { document.querySelector(".table").scrollBy(0, 900); if (++frames < 120) requestAnimationFrame(scroll); })(), true)`)
	b.until(`frames >= 120`)
	b.run(chromedp.Sleep(300 * time.Millisecond))
	if n := b.eval(`String(document.querySelectorAll("[role=row]").length)`); len(n) > 2 {
		t.Errorf("%s rows are rendered", n)
	}
	t.Logf("overview: first content %v, complete %v, tasks over 50 ms while loading %s ms, while scrolling %s ms", content.Round(time.Millisecond), complete.Round(time.Millisecond), loading, scrolling)
	t.Logf("list of %d pods: complete %v, tasks over 50 ms while scrolling %s ms", manyPods, list.Round(time.Millisecond), b.eval(`JSON.stringify(tasks)`))
}
