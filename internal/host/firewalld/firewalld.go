// Package firewalld makes firewalld accept the traffic of pods. The base chains of firewalld reject connections that
// no zone accepts, also those that the rules of this project have accepted: the kernel evaluates the base chains of
// both, and one reject is enough. So the address ranges of pods and the links of the pod network are added to
// firewalld's zone "trusted".
//
// https://firewalld.org/documentation/zone/predefined-zones.html
package firewalld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/dbus"
	"hyperkube/internal/host/hostjournal"
)

// service, object and zoneInterface are the names by which firewalld is called over D-Bus.
//
// https://firewalld.org/documentation/man-pages/firewalld.dbus.html
const (
	service       = "org.fedoraproject.FirewallD1"
	object        = "/org/fedoraproject/FirewallD1"
	zoneInterface = service + ".zone"
)

// zone is the zone that accepts all connections.
const zone = "trusted"

// sourceEntry and interfaceEntry are the kinds of entries of a zone. Their values are parts of the names of
// firewalld's methods and of the entries in the host journal.
const (
	sourceEntry    = "Source"
	interfaceEntry = "Interface"
)

// callTimeout limits a call of firewalld, which applies a change before it replies.
const callTimeout = 30 * time.Second

// Config configures a Manager.
type Config struct {
	// Sources are the address ranges of pods.
	Sources []netip.Prefix
	// Links are the names of the links of the pod network. They may not exist yet.
	Links []string
	// Journal records the changes. Nil records none.
	Journal *hostjournal.Journal
	// Log receives messages about changes and failures.
	Log *slog.Logger
}

// Manager keeps the address ranges of pods and the links of the pod network in the zone "trusted"
// while firewalld runs. firewalld drops them when it is restarted or reloaded, because they are
// only part of its runtime configuration.
type Manager struct {
	cfg Config
	// entries are what is added to the zone.
	entries []entry
}

// entry is an address range (kind sourceEntry) or a network link (kind interfaceEntry) in a zone of firewalld. name
// is the range or link.
type entry struct{ kind, name string }

// New returns a Manager for the address ranges and links in cfg.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	for _, s := range cfg.Sources {
		m.entries = append(m.entries, entry{sourceEntry, s.String()})
	}
	for _, l := range cfg.Links {
		m.entries = append(m.entries, entry{interfaceEntry, l})
	}
	return m
}

// Run adds the entries to the zone whenever firewalld has started or reloaded, until ctx is done.
// It logs failures and retries. On a machine without a system bus, and in a network namespace other
// than that of process 1, which firewalld does not protect, it only waits. It returns no error.
func (m *Manager) Run(ctx context.Context) error {
	if !inHostNetwork() {
		<-ctx.Done()
		return nil
	}
	retry := backoff.Backoff{First: time.Second, Max: time.Minute}
	for {
		began := time.Now()
		err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil { // there is no system bus
			<-ctx.Done()
			return nil
		}
		if time.Since(began) > time.Minute {
			retry.Reset()
		}
		pause := retry.Next()
		m.cfg.Log.Warn("adding pod network to the trusted zone of firewalld, or watching for its reloads, failed; firewalld may reject traffic of pods until the next attempt, after retryAfter, succeeds", "err", err, "retryAfter", pause)
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
	}
}

// watch adds the entries if firewalld runs, and again whenever it was restarted or reloaded. It returns nil if there is
// no system bus, and otherwise an error when the connection to the bus ends or a change fails.
func (m *Manager) watch(ctx context.Context) error {
	conn, err := dial(ctx)
	if conn == nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, rule := range []string{
		"type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='" + service + "'",
		"type='signal',sender='" + service + "',interface='" + service + "',member='Reloaded'",
	} {
		if err := conn.Match(ctx, rule); err != nil {
			return fmt.Errorf("subscribing to signals of firewalld: %w", err)
		}
	}
	running, err := isRunning(ctx, conn)
	if err != nil {
		return err
	}
	if running {
		if err := m.add(ctx, conn); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-conn.Signals():
			if !ok {
				return dbus.ErrClosed
			}
			if !lostEntries(s) {
				continue
			}
			if err := m.add(ctx, conn); err != nil {
				return err
			}
		}
	}
}

// lostEntries reports whether a signal means that the zone has lost its entries, because firewalld was reloaded or has started.
// The arguments of NameOwnerChanged are a name, its old and its new owner. The bus also sends signals without a
// subscription, such as NameAcquired.
func lostEntries(s dbus.Signal) bool {
	if s.Member == "Reloaded" {
		return true
	}
	if s.Member != "NameOwnerChanged" || len(s.Body) != 3 {
		return false
	}
	owner, ok := s.Body[2].(string)
	return ok && s.Body[0] == service && owner != ""
}

// add assigns the configured address ranges and links to the zone, also those that belong to another zone, after
// recording them in the host journal. It is no error if the zone already contains them. It stops at the first error.
func (m *Manager) add(ctx context.Context, conn *dbus.Conn) error {
	var changes []hostjournal.Change
	for _, e := range m.entries {
		changes = append(changes, hostjournal.Change{Kind: hostjournal.Firewalld, Name: e.kind + " " + e.name})
	}
	if err := m.cfg.Journal.Record(changes...); err != nil {
		return fmt.Errorf("recording changes to firewalld: %w", err)
	}
	added := 0
	for _, e := range m.entries {
		// Unlike add, change also moves an entry from another zone, into which an administrator or NetworkManager has put
		// it.
		err := call(ctx, conn, "changeZoneOf"+e.kind, zone, e.name)
		switch {
		case err == nil:
			added++
		case !hasCode(err, "ZONE_ALREADY_SET", "ALREADY_ENABLED"):
			return fmt.Errorf("adding %s %s to the zone %s: %w", strings.ToLower(e.kind), e.name, zone, err)
		}
	}
	if added > 0 {
		m.cfg.Log.Info("pod network added to the trusted zone of firewalld, so that firewalld accepts traffic of pods", "entries", added)
	}
	return nil
}

// Undo returns the function with which hostjournal removes recorded entries from the zone. If
// firewalld does not run, the function does nothing, because the entries were only part of the
// runtime configuration.
func Undo() hostjournal.Functions {
	return hostjournal.Functions{hostjournal.Firewalld: func(ctx context.Context, changes []hostjournal.Change) error {
		conn, err := dial(ctx)
		if conn == nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if running, err := isRunning(ctx, conn); err != nil || !running {
			return err
		}
		var errs []error
		for _, c := range changes {
			kind, name, _ := strings.Cut(c.Name, " ")
			if kind != sourceEntry && kind != interfaceEntry {
				errs = append(errs, fmt.Errorf("unknown firewalld entry %q", c.Name))
				continue
			}
			if err := call(ctx, conn, "remove"+kind, zone, name); err != nil && !hasCode(err, "NOT_ENABLED", "UNKNOWN_SOURCE", "UNKNOWN_INTERFACE", "ZONE_CONFLICT") {
				errs = append(errs, fmt.Errorf("removing %s %s from the zone %s of firewalld: %w", strings.ToLower(kind), name, zone, err))
			}
		}
		return errors.Join(errs...)
	}}
}

// inHostNetwork reports whether the calling thread is in the network namespace of process 1, and so of firewalld. It returns
// true if that is unknown.
func inHostNetwork() bool {
	self, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return true
	}
	first, err := os.Readlink("/proc/1/ns/net")
	return err != nil || self == first
}

// dial connects to the system bus. It returns nil without an error if the machine has none.
func dial(ctx context.Context) (*dbus.Conn, error) {
	if !dbus.Exists() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := dbus.Dial(ctx, dbus.SystemBus())
	if err != nil {
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	return conn, nil
}

// isRunning reports whether firewalld runs. It does not start it.
func isRunning(ctx context.Context, conn *dbus.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := conn.Call(ctx, dbus.Call{
		Destination: "org.freedesktop.DBus", Path: "/org/freedesktop/DBus", Interface: "org.freedesktop.DBus", Member: "NameHasOwner", Args: []any{service},
	})
	if err != nil {
		return false, fmt.Errorf("finding firewalld: %w", err)
	}
	running, ok := false, len(out) == 1
	if ok {
		running, ok = out[0].(bool)
	}
	if !ok {
		return false, fmt.Errorf("finding firewalld: unexpected reply %v", out)
	}
	return running, nil
}

// call calls firewalld's D-Bus method member, such as changeZoneOfSource, to change the entry name, an address
// range or link, of a zone.
func call(ctx context.Context, conn *dbus.Conn, member, zone, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := conn.Call(ctx, dbus.Call{Destination: service, Path: object, Interface: zoneInterface, Member: member, Args: []any{zone, name}})
	return err
}

// hasCode reports whether err, an error reply of firewalld with the text "CODE: details", has one
// of codes.
func hasCode(err error, codes ...string) bool {
	code, _, _ := strings.Cut(err.Error(), ":")
	return slices.Contains(codes, code)
}
