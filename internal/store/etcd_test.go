package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/testing/testetcd"
)

// startEtcd runs an etcd member in dir and returns an in-process client. The member does not sync
// to disk, so that tests do not depend on the speed of the disk.
func startEtcd(t testing.TB, dir string) (*clientv3.Client, func()) {
	t.Helper()
	return startMember(t, testetcd.Config{Dir: dir})
}

func startMember(t testing.TB, cfg testetcd.Config) (*clientv3.Client, func()) {
	t.Helper()
	m := testetcd.Start(t, cfg)
	if localRevision.Load() {
		m.Client.KV = &localKV{m.Client.KV, m.Server}
	}
	return m.Client, m.Stop
}

// localRevision makes the clients of startEtcd return the current revision as those of an embedded
// member do.
var localRevision atomic.Bool

type localKV struct {
	clientv3.KV
	server *etcdserver.EtcdServer
}

func (l *localKV) CurrentRevision(context.Context) (int64, error) { return l.server.KV().Rev(), nil }

// testCodec stores ConfigMaps as JSON.
type testCodec struct{}

func (testCodec) Encode(obj runtime.Object) ([]byte, error) {
	cm := obj.(*corev1.ConfigMap)
	if cm.ResourceVersion != "" {
		return nil, errors.New("has a resourceVersion")
	}
	return json.Marshal(cm)
}

func (testCodec) Decode(data []byte, revision int64) (runtime.Object, error) {
	cm := &corev1.ConfigMap{}
	if err := json.Unmarshal(data, cm); err != nil {
		return nil, err
	}
	cm.ResourceVersion = strconv.FormatInt(revision, 10)
	return cm, nil
}

func configMap(key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}, Data: map[string]string{"v": value}}
}

func valueOf(e *Entry) string {
	if e == nil {
		return "<nil>"
	}
	obj, err := e.Object()
	if err != nil {
		return err.Error()
	}
	return obj.(*corev1.ConfigMap).Data["v"]
}

func collectionConfig(path string) CollectionConfig {
	return CollectionConfig{Resource: schema.GroupResource{Resource: path}, Path: path, Codec: testCodec{}}
}

// startStore runs a store. stop stops it and waits.
func startStore(t testing.TB, cfg Config) (s *Store, stop func()) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// newStore runs an etcd and a store until the test is finished.
func newStore(t testing.TB, cfg Config) *Store {
	client, stopEtcd := startEtcd(t, t.TempDir())
	cfg.Client = client
	s, stop := startStore(t, cfg)
	t.Cleanup(func() {
		stop()
		stopEtcd()
	})
	return s
}

// testContext returns a context with a timeout that is much longer than a successful test.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func mustCommit(t testing.TB, s *Store, ops ...Op) ([]*Entry, int64) {
	t.Helper()
	entries, revision, err := s.Commit(testContext(t), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return entries, revision
}

func mustCreate(t testing.TB, c *Collection, key, value string) *Entry {
	t.Helper()
	entries, _ := mustCommit(t, c.store, c.Create(key, configMap(key, value), 0))
	return entries[0]
}

func mustUpdate(t testing.TB, e *Entry, value string) *Entry {
	t.Helper()
	c := e.collection
	entries, _ := mustCommit(t, c.store, c.Update(e, configMap(e.key, value), 0))
	return entries[0]
}

func mustDelete(t testing.TB, e *Entry) int64 {
	t.Helper()
	_, revision := mustCommit(t, e.collection.store, e.collection.Delete(e))
	return revision
}

func mustList(t testing.TB, c *Collection, opts ListOptions) *Page {
	t.Helper()
	page, err := c.List(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// show formats entries as "key=value".
func show(entries []*Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Key()+"="+valueOf(e))
	}
	return out
}

func showEvent(ev Event) string {
	switch {
	case ev.Current == nil:
		return fmt.Sprintf("%d -%s %s", ev.Revision, ev.Previous.Key(), valueOf(ev.Previous))
	case ev.Previous == nil:
		return fmt.Sprintf("%d +%s %s", ev.Revision, ev.Current.Key(), valueOf(ev.Current))
	}
	return fmt.Sprintf("%d %s %s->%s", ev.Revision, ev.Current.Key(), valueOf(ev.Previous), valueOf(ev.Current))
}
