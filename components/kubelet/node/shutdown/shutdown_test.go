package shutdown

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
	"hyperkube/internal/testing/testlogind"
)

func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		all, criticals time.Duration
		by             []Period
		want           []Period
		ok             bool
	}{
		{0, 0, nil, nil, true},
		{30 * time.Second, 10 * time.Second, nil, []Period{{0, 20 * time.Second}, {podutil.SystemCritical, 10 * time.Second}}, true},
		{0, 0, []Period{{100, time.Second}, {0, time.Minute}}, []Period{{0, time.Minute}, {100, time.Second}}, true},
		{time.Second, 0, []Period{{0, time.Second}}, nil, false},
		{time.Second, 2 * time.Second, nil, nil, false},
		{time.Millisecond, 0, nil, nil, false},
		{0, 0, []Period{{0, -1}}, nil, false},
	} {
		got, err := Periods(c.all, c.criticals, c.by)
		if (err == nil) != c.ok || !slices.Equal(got, c.want) {
			t.Errorf("%v, %v, %v: %v, %v", c.all, c.criticals, c.by, got, err)
		}
	}
}

func pod(name string, priority int32) *v1.Pod {
	p := &v1.Pod{}
	p.Name = name
	p.Spec.Priority = &priority
	return p
}

func TestGroups(t *testing.T) {
	got := groups([]Period{{0, 0}, {1000, 0}, {2000, 0}}, []*v1.Pod{
		pod("low", -5), pod("zero", 0), pod("below", 999), pod("at", 1000), pod("above", 1001), pod("top", 5000), {},
	})
	var names []string
	for _, group := range got {
		var list []string
		for _, p := range group {
			list = append(list, p.Name)
		}
		names = append(names, strings.Join(list, " "))
	}
	if want := []string{"low zero below ", "at above", "top"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// recorder records events in order.
type recorder struct {
	mu       sync.Mutex
	list     []string
	notified chan struct{}
}

func (r *recorder) add(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, s)
	select {
	case r.notified <- struct{}{}:
	default:
	}
}

func (r *recorder) await(t *testing.T, want ...string) {
	t.Helper()
	late := time.After(2 * time.Minute)
	for {
		r.mu.Lock()
		ok, have := slices.Equal(r.list, want), slices.Clone(r.list)
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.notified:
		case <-late:
			t.Fatalf("%q, want %q", have, want)
		}
	}
}

// TestBus tests a canceled shutdown and a completed one over a bus.
func TestBus(t *testing.T) {
	dir, err := os.MkdirTemp("", "logind") // short path because socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	conf := filepath.Join(dir, "conf")
	bus, err := testlogind.Listen(filepath.Join(dir, "bus"), 5*time.Second, func() time.Duration {
		if raw, err := os.ReadFile(filepath.Join(conf, "99-kubelet.conf")); err != nil || !strings.HasSuffix(string(raw), "InhibitDelayMaxSec=30\n") {
			t.Errorf("override %q, %v", raw, err)
		}
		return 30 * time.Second
	})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(dir, "bus"))
	r := &recorder{notified: make(chan struct{}, 1)}
	state := filepath.Join(dir, "graceful_node_shutdown_state")
	grace := int64(3)
	short := pod("short", 0)
	short.Spec.TerminationGracePeriodSeconds = &grace
	up := make(chan struct{}, 4)
	m := New(Config{
		Periods: []Period{{0, 20 * time.Second}, {podutil.SystemCritical, 10 * time.Second}}, LogindConf: conf, State: state,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Connect: func(ctx context.Context) (Logind, error) {
			l, err := Connect(ctx)
			return &notifyingLogind{l, up}, err
		},
		Pods: func() []*v1.Pod { return []*v1.Pod{pod("vital", podutil.SystemCritical), pod("usual", 0), short} },
		Terminate: func(p *v1.Pod, grace int64) <-chan struct{} {
			r.add(p.Name + " " + time.Duration(grace*int64(time.Second)).String())
			done := make(chan struct{})
			close(done)
			return done
		},
		Changed: func() { r.add("changed") },
		Event:   func(_, message string) { r.add(message) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	receive := func(ch <-chan struct{}) {
		t.Helper()
		select {
		case <-ch:
		case <-time.After(2 * time.Minute):
			t.Fatal("no event")
		}
	}
	receive(up)
	if err := bus.Shutdown(true); err != nil {
		t.Fatal(err)
	}
	receive(bus.Released())
	all := []string{"changed", "Shutdown manager detected shutdown event", "usual 20s", "short 3s", "vital 10s"}
	r.await(t, all...)
	if start, end := m.Times(); !m.Down() || start.IsZero() || end.Before(start) {
		t.Errorf("shutdown %v from %v to %v", m.Down(), start, end)
	}
	if err := bus.Shutdown(false); err != nil {
		t.Fatal(err)
	}
	receive(up)
	r.await(t, append(all, "changed", "Shutdown manager detected shutdown cancellation")...)
	if m.Down() {
		t.Error("still shutting down")
	}
	// After a connection is closed, it is opened again and the lock is taken again.
	bus.Drop()
	receive(bus.Released())
	receive(up)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	receive(bus.Released())
	if again := New(m.cfg); again.times.Start.IsZero() {
		t.Error("the shutdown time was not saved")
	}
}

// notifyingLogind notifies when a lock is taken.
type notifyingLogind struct {
	Logind
	up chan<- struct{}
}

func (l *notifyingLogind) Inhibit(ctx context.Context) (io.Closer, error) {
	c, err := l.Logind.Inhibit(ctx)
	l.up <- struct{}{}
	return c, err
}

func TestDelayTooShort(t *testing.T) {
	m := New(Config{Periods: []Period{{0, time.Minute}}, LogindConf: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err := m.extendDelay(t.Context(), fixedDelayLogind{}); err == nil || !strings.Contains(err.Error(), "unable to update logind InhibitDelayMaxSec to 1m0s") {
		t.Error(err)
	}
}

// fixedDelayLogind is a logind whose maximum delay is always five seconds.
type fixedDelayLogind struct{}

func (fixedDelayLogind) Delay(context.Context) (time.Duration, error) { return 5 * time.Second, nil }
func (fixedDelayLogind) Reload(context.Context) error                 { return nil }
func (fixedDelayLogind) Inhibit(context.Context) (io.Closer, error)   { return nil, errors.New("no") }
func (fixedDelayLogind) Events(context.Context) (<-chan bool, error)  { return nil, errors.New("no") }
func (fixedDelayLogind) Close() error                                 { return nil }

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"startTime":"2026-01-01T00:00:00Z","endTime":"2026-01-01T00:00:01Z"}`))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decode(raw) })
}
