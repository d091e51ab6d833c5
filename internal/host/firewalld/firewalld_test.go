package firewalld

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"hyperkube/internal/host/dbus"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testbus"
	"hyperkube/internal/testing/testwait"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// daemon is a firewalld on a system bus.
type daemon struct {
	*testbus.Bus

	mu      sync.Mutex // guards the fields below
	running bool
	entries map[string]string // zone by "Source RANGE" and "Interface LINK"
	broken  bool              // calls fail
}

// newDaemon starts a bus with firewalld.
func newDaemon(t *testing.T, running bool) *daemon {
	t.Helper()
	d := &daemon{running: running, entries: map[string]string{}}
	path := filepath.Join(t.TempDir(), "bus")
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	var err error
	if d.Bus, err = testbus.Listen(path, d.handle); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func (d *daemon) handle(call testbus.Call) (testbus.Reply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call.Member == "NameHasOwner" {
		return testbus.Reply{Body: []any{d.running}}, nil
	}
	if !d.running || d.broken {
		return testbus.Reply{}, testbus.Error("the service does not run")
	}
	if call.Interface != zoneInterface || len(call.Args) != 2 {
		return testbus.Reply{}, testbus.NoMethod(call)
	}
	zone, name := fmt.Sprint(call.Args[0]), fmt.Sprint(call.Args[1])
	if kind, ok := strings.CutPrefix(call.Member, "changeZoneOf"); ok {
		if d.entries[kind+" "+name] == zone {
			return testbus.Reply{}, testbus.Error("ZONE_ALREADY_SET: '" + zone + "' already has '" + name + "'")
		}
		d.entries[kind+" "+name] = zone
		return testbus.Reply{Body: []any{zone}}, nil
	}
	if kind, ok := strings.CutPrefix(call.Member, "remove"); ok {
		switch d.entries[kind+" "+name] {
		case zone:
			delete(d.entries, kind+" "+name)
			return testbus.Reply{Body: []any{zone}}, nil
		case "":
			return testbus.Reply{}, testbus.Error("UNKNOWN_" + strings.ToUpper(kind) + ": '" + name + "' not in '" + zone + "'")
		}
		return testbus.Reply{}, testbus.Error("ZONE_CONFLICT: '" + name + "' not in '" + zone + "'")
	}
	return testbus.Reply{}, testbus.NoMethod(call)
}

// set changes the state of the daemon.
func (d *daemon) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// trusted returns the entries of the zone trusted.
func (d *daemon) trusted() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	entries := maps.Clone(d.entries)
	maps.DeleteFunc(entries, func(_, in string) bool { return in != zone })
	return slices.Sorted(maps.Keys(entries))
}

// all are the entries that the managers of these tests add.
var all = []string{"Interface hk-br0", "Source 10.244.0.0/16", "Source fd00:10:244::/56"}

// run runs a manager until the end of the test, and returns the path of its journal and a function that stops it.
func run(t *testing.T) (journal string, stop func()) {
	t.Helper()
	journal = filepath.Join(t.TempDir(), "journal")
	j, err := hostjournal.Open(journal)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{
		Sources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
		Links:   []string{"hk-br0"}, Journal: j, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = j.Close()
	})
	t.Cleanup(stop)
	return journal, stop
}

func (d *daemon) awaitTrusted(t *testing.T) {
	t.Helper()
	testwait.Until(t, "entries of the zone", func() bool { return slices.Equal(d.trusted(), all) })
}

// TestManager checks that the entries are added when firewalld runs, starts or reloads, and that Undo removes only
// them.
func TestManager(t *testing.T) {
	d := newDaemon(t, true)
	d.set(func() { d.entries["Interface eth1"], d.entries["Interface hk-br0"] = "trusted", "public" })
	journal, stop := run(t)
	testwait.Until(t, "entries of the zone", func() bool {
		return slices.Equal(d.trusted(), slices.Sorted(slices.Values(append([]string{"Interface eth1"}, all...))))
	})
	d.set(func() { clear(d.entries) })
	if err := d.Signal(object, service, "Reloaded"); err != nil {
		t.Fatal(err)
	}
	d.awaitTrusted(t)
	d.set(func() { d.running, d.entries = false, map[string]string{} })
	if err := d.Signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", service, ":1.5", ""); err != nil {
		t.Fatal(err)
	}
	d.set(func() { d.running = true })
	if err := d.Signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", service, "", ":1.6"); err != nil {
		t.Fatal(err)
	}
	d.awaitTrusted(t)
	// A new connection to the bus.
	d.set(func() { clear(d.entries) })
	d.Drop()
	d.awaitTrusted(t)
	stop()
	d.set(func() { d.entries["Source 192.0.2.0/24"], d.entries["Source 10.244.0.0/16"] = "trusted", "public" })
	for range 2 {
		if err := hostjournal.Undo(t.Context(), journal, Undo()); err != nil {
			t.Fatal(err)
		}
		if got := d.trusted(); !slices.Equal(got, []string{"Source 192.0.2.0/24"}) {
			t.Errorf("entries after Undo: %v", got)
		}
	}
}

func TestLostEntries(t *testing.T) {
	for _, c := range []struct {
		member string
		body   []any
		want   bool
	}{
		{"Reloaded", nil, true},
		{"NameOwnerChanged", []any{service, "", ":1.6"}, true},
		{"NameOwnerChanged", []any{service, ":1.6", ""}, false},
		{"NameOwnerChanged", []any{"org.freedesktop.Other", "", ":1.6"}, false},
		{"NameOwnerChanged", []any{service}, false},
		{"NameAcquired", []any{":1.7"}, false},
	} {
		if got := lostEntries(dbus.Signal{Member: c.member, Body: c.body}); got != c.want {
			t.Errorf("%s %v: %t", c.member, c.body, got)
		}
	}
}

// TestStartedLater checks that the entries are added when firewalld starts, and after a failure.
func TestStartedLater(t *testing.T) {
	d := newDaemon(t, false)
	d.set(func() { d.broken = true })
	run(t)
	d.set(func() { d.running = true })
	testwait.Until(t, "subscribed client", func() bool {
		return d.Signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", service, "", ":1.6") == nil
	})
	d.set(func() { d.broken = false })
	testwait.Until(t, "entries of the zone", func() bool {
		// Signals before the subscription are lost.
		_ = d.Signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", service, "", ":1.6")
		return slices.Equal(d.trusted(), all)
	})
}

// TestWithoutFirewalld checks that Undo succeeds without firewalld or a bus, and that a Manager runs without a bus.
func TestWithoutFirewalld(t *testing.T) {
	d := newDaemon(t, true)
	journal, stop := run(t)
	d.awaitTrusted(t)
	stop()
	d.set(func() { d.running = false })
	if err := hostjournal.Undo(t.Context(), journal, Undo()); err != nil {
		t.Error("without firewalld:", err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "absent"))
	change := []hostjournal.Change{{Kind: hostjournal.Firewalld, Name: all[0]}}
	if err := hostjournal.Revert(t.Context(), change, Undo()); err != nil {
		t.Error("without a bus:", err)
	}
	_, stop = run(t)
	stop()
}
