package collect

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/testing/testwait"
)

// pods is a Pods with a constant list, by namespace/name.
type pods map[string]*corev1.Pod

func (p pods) Pod(namespace, name string) *corev1.Pod { return p[namespace+"/"+name] }

// collection is a running Collector.
type collection struct {
	t     *testing.T
	dir   string
	store *store.Store
	stop  func()
}

func collectFrom(t *testing.T, dir string, p Pods, rules *settings.Settings) *collection {
	t.Helper()
	s, err := store.Open(store.Config{Dir: filepath.Join(dir, "store"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{
		Node: "n", PodLogs: filepath.Join(dir, "pods"), NodeLogs: []string{filepath.Join(dir, "node")}, Store: s, Pods: p,
		Settings: func() *settings.Settings { return rules }, FlushInterval: 1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	out := &collection{t: t, dir: dir, store: s, stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(out.stop)
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// text returns all stored records: NAMESPACE/POD/CONTAINER or FILE, the label app, and the text.
func (c *collection) text() string {
	var out []string
	for _, nodeFiles := range []bool{false, true} {
		if _, err := c.store.Search(c.t.Context(), store.Query{NodeFiles: nodeFiles}, func(e store.Entry) bool {
			s := e.Source
			name := s.File
			if name == "" {
				name = s.Namespace + "/" + s.Pod + "/" + s.Container
			}
			out = append(out, fmt.Sprintf("%s %s %s", name, s.Labels["app"], e.Text))
			return true
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	return strings.Join(out, "\n")
}

// TestCollect checks joining, metadata, rules, and that a second Collector continues without repetition.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	web, java, node := filepath.Join(dir, "pods/shop_web_u1/c"), filepath.Join(dir, "pods/shop_java_hash/c"), filepath.Join(dir, "node")
	for _, d := range []string{web, java, node} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := pods{
		"shop/web":  {ObjectMeta: metav1.ObjectMeta{UID: "u1", Labels: map[string]string{"app": "web"}}},
		"shop/java": {ObjectMeta: metav1.ObjectMeta{UID: types.UID("mirror"), Labels: map[string]string{"app": "java"}, Annotations: map[string]string{"kubernetes.io/config.hash": "hash", StartAnnotation: `^\S`}}},
	}
	rules, err := settings.Parse("config.yaml", []byte("drop: [{match: noise}]\nredact: [{match: secret, replace: '***'}]"))
	if err != nil {
		t.Fatal(err)
	}
	const stamp = "2026-11-28T22:00:0"
	write(t, filepath.Join(web, "0.log"), stamp+"1Z stdout F a secret\n"+stamp+"2Z stdout P part one, \n"+stamp+"2Z stderr F noise\n"+stamp+"3Z stdout F part two\nmalformed\n")
	write(t, filepath.Join(java, "0.log"), stamp+"4Z stdout F first\n"+stamp+"4Z stdout F  at x\n"+stamp+"5Z stdout F second\n")
	write(t, filepath.Join(node, "hyperkube.log"), "time="+stamp+"6.000Z level=INFO msg=started\n")
	c := collectFrom(t, dir, p, rules)
	want := strings.Join([]string{
		"shop/web/c web a ***", "shop/web/c web part one, part two", "shop/java/c java first\n at x", "shop/java/c java second", "shop/web/c web malformed",
		"hyperkube  time=" + stamp + "6.000Z level=INFO msg=started",
	}, "\n")
	testwait.Until(t, "all records are stored", func() bool { return len(c.text()) >= len(want) })
	if got := c.text(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	c.stop()

	// The log of a deleted pod is kept.
	write(t, filepath.Join(web, "0.log"), stamp+"8Z stdout F last\n")
	c = collectFrom(t, dir, nil, &settings.Settings{})
	testwait.Until(t, "the last record is stored", func() bool { return strings.Contains(c.text(), "last") })
	if err := os.RemoveAll(filepath.Dir(web)); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the position is removed", func() bool { return len(c.store.Positions()) == 2 })
	if got := c.text(); strings.Count(got, "part one") != 1 || strings.Count(got, "last") != 1 || strings.Count(got, "second") != 1 {
		t.Errorf("after a restart:\n%s", got)
	}
}
