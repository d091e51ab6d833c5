package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testetcd"
)

// lagging is an etcd watcher that delays all events while it is held, until progress is requested.
type lagging struct {
	clientv3.Watcher

	mu   sync.Mutex
	held chan struct{} // nil if not held; closed when released
}

func (l *lagging) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

func (l *lagging) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}

// wait returns when the watcher is not held or ctx is done.
func (l *lagging) wait(ctx context.Context) {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// Watch implements clientv3.Watcher.
func (l *lagging) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := l.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range in {
			l.wait(ctx)
			select {
			case out <- resp:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// RequestProgress implements clientv3.Watcher.
func (l *lagging) RequestProgress(ctx context.Context) error {
	l.letGo()
	return l.Watcher.RequestProgress(ctx)
}

// TestDryRunOutdatedCache checks that a dry run is based on the latest object even if the cache lags
// behind.
func TestDryRunOutdatedCache(t *testing.T) {
	etcd := testetcd.Client(t)
	l := &lagging{Watcher: etcd.Watcher}
	etcd.Watcher = l
	a := newAPI(t, startServer(t, apiserver.Config{Etcd: etcd}))
	const other = "7a0c1d2e-0000-4000-8000-000000000001"
	for i, tc := range []struct {
		name, method, body, header string
		gone                       bool
		code                       int
	}{
		{"patch", "PATCH", `{"data":{"b":"3"}}`, mrg, false, 200},
		{"patch of what is gone", "PATCH", `{"data":{"b":"3"}}`, mrg, true, 404},
		{"update", "PUT", `{"metadata":{"name":%q},"data":{"b":"3"}}`, jsn, false, 200},
		{"delete", "DELETE", "", jsn, false, 200},
		{"delete of what is gone", "DELETE", "", jsn, true, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := fmt.Sprintf("c%d", i)
			if r := a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":%q}}`, name), jsn); r.code != 201 {
				t.Fatalf("%+v", r)
			}
			if r := a.do("GET", cms+"/"+name, ""); r.code != 200 {
				t.Fatalf("%+v", r)
			}
			l.hold()
			defer l.letGo()
			var err error
			if key := "/registry/configmaps/default/" + name; tc.gone {
				_, err = etcd.Delete(t.Context(), key)
			} else {
				_, err = etcd.Put(t.Context(), key, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default","uid":%q}}`, name, other))
			}
			if err != nil {
				t.Fatal(err)
			}
			r := a.do(tc.method, cms+"/"+name+"?dryRun=All", strings.ReplaceAll(tc.body, "%q", `"`+name+`"`), tc.header)
			if r.code != tc.code || !tc.gone && !strings.Contains(r.body, other) {
				t.Errorf("%+v", r)
			}
		})
	}
}
