package iscsi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/lifecycle"
)

// How hard it is tried to reach a disk by all its portals; upstream's.
const (
	// enoughPaths suffice from the second attempt on, any from the last on.
	enoughPaths  = 2
	mostAttempts = 5
)

// How long a device may take to be there once it was looked for, and the device that
// several are made into; upstream's.
const (
	deviceWithin    = 30 * time.Second
	multipathWithin = 10 * time.Second
	// lookEvery is how often it is looked: the kernel tells of neither by a file that
	// could be watched.
	lookEvery = 50 * time.Millisecond
)

// What iscsiadm exits with when there is a session already, and when there is none
// or no record.
const (
	exitNoSession = 2
	exitExists    = 15
	exitNoObjects = 21
)

// Keys of Secrets for CHAP are the names that iscsiadm has for them.
var (
	discoverySecrets = []string{
		"discovery.sendtargets.auth.username", "discovery.sendtargets.auth.password",
		"discovery.sendtargets.auth.username_in", "discovery.sendtargets.auth.password_in",
	}
	sessionSecrets = []string{
		"node.session.auth.username", "node.session.auth.password",
		"node.session.auth.username_in", "node.session.auth.password_in",
	}
)

// chap is how initiator and target prove who they are.
type chap struct {
	discovery, session bool
	secret             map[string]string
}

// iscsiadm runs open-iscsi's program. What it is told of secrets is not in errors.
func iscsiadm(ctx context.Context, args ...string) (string, error) {
	out, err := volume.RunTool(ctx, "iscsiadm", args...)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return strings.TrimSpace(out), err
}

// exits tells whether err is that a program exited with one of codes.
func exits(err error, codes ...int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && slices.Contains(codes, exit.ExitCode())
}

// attach makes a disk known to the kernel and returns the path of its device. The
// caller holds the target's lock.
func (p *Plugin) attach(ctx context.Context, d *disk, c chap) (string, error) {
	devices := map[string]string{}
	var last error
	for attempt := 1; attempt <= mostAttempts; attempt++ {
		for _, portal := range d.Portals {
			if devices[portal] != "" {
				continue
			}
			device, err := p.reach(ctx, d, portal, c)
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			if err != nil {
				last = err
				continue
			}
			devices[portal] = device
		}
		if len(devices) == 0 {
			return "", fmt.Errorf("failed to get any path for iscsi disk, last err seen:\n%w", last)
		}
		if len(devices) == len(d.Portals) || len(devices) >= enoughPaths && attempt > 1 {
			break
		}
	}
	within := time.Duration(0)
	if len(d.Portals) > 1 {
		within = multipathWithin
	}
	names := slices.Sorted(maps.Values(devices))
	name, err := p.await(ctx, within, func() string {
		for _, n := range names {
			if m := p.kernel.multipath(n); m != "" {
				return m
			}
		}
		return ""
	})
	if err != nil {
		return "", err
	}
	if name == "" {
		name = names[0]
	}
	return filepath.Join(p.cfg.Dev, name), nil
}

// await looks for something until it is there, for no longer than within; it is
// looked for once at least.
func (p *Plugin) await(ctx context.Context, within time.Duration, look func() string) (string, error) {
	end := time.Now().Add(within)
	for {
		if found := look(); found != "" || !time.Now().Before(end) {
			return found, nil
		}
		if !lifecycle.Pause(ctx, lookEvery) {
			return "", ctx.Err()
		}
	}
}

// reach returns the name of the disk's device by one portal.
func (p *Plugin) reach(ctx context.Context, d *disk, portal string, c chap) (string, error) {
	sessions, err := p.kernel.sessions(d.Target, d.Interface)
	if err != nil {
		return "", err
	}
	s := through(sessions, portal)
	if s == nil {
		if err := login(ctx, d, portal, c); err != nil {
			return "", err
		}
		if sessions, err = p.kernel.sessions(d.Target, d.Interface); err != nil {
			return "", err
		}
		if s = through(sessions, portal); s == nil {
			return "", fmt.Errorf("iscsi: there is no session through portal %s after logging in", portal)
		}
	}
	if name := s.device(d.LUN); name != "" {
		return name, nil
	}
	if err := p.kernel.scan(s, d.LUN); err != nil {
		return "", err
	}
	name, err := p.await(ctx, p.deviceWithin, func() string { return s.device(d.LUN) })
	if err == nil && name == "" {
		err = fmt.Errorf("iscsi: there is no device of LUN %d of %s through portal %s after %v", d.LUN, d.Target, portal, p.deviceWithin)
	}
	return name, err
}

// login makes a session through a portal.
func login(ctx context.Context, d *disk, portal string, c chap) error {
	if d.Initiator != "" {
		if err := cloneInterface(ctx, d); err != nil {
			return err
		}
	}
	discover := func(args ...string) (string, error) {
		return iscsiadm(ctx, append([]string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", d.Interface}, args...)...)
	}
	node := func(args ...string) (string, error) {
		return iscsiadm(ctx, append([]string{"-m", "node", "-p", portal, "-T", d.Target, "-I", d.Interface}, args...)...)
	}
	// It may be there already; what is wrong is told by what follows.
	_, _ = discover("-o", "new")
	if c.discovery {
		if err := tell(discover, "discovery.sendtargets.auth.authmethod", discoverySecrets, c.secret); err != nil {
			return fmt.Errorf("iscsi: failed to update discoverydb to portal %s error: %w", portal, err)
		}
	}
	if out, err := discover("--discover"); err != nil {
		_, _ = discover("-o", "delete")
		return fmt.Errorf("iscsi: failed to sendtargets to portal %s output: %s, err %w", portal, out, err)
	}
	// The kernel is to know the disks alone that were asked for. Old versions of
	// open-iscsi cannot be told.
	_, _ = node("-o", "update", "-n", "node.session.scan", "-v", "manual")
	if c.session {
		if err := tell(node, "node.session.auth.authmethod", sessionSecrets, c.secret); err != nil {
			return fmt.Errorf("iscsi: failed to update iscsi node to portal %s error: %w", portal, err)
		}
	}
	if out, err := node("--login"); err != nil && !exits(err, exitExists) {
		_, _ = node("-o", "delete")
		return fmt.Errorf("iscsi: failed to attach disk: Error: %s (%w)", out, err)
	}
	// A machine must not wait for the target when it boots.
	_, _ = node("-o", "update", "-n", "node.startup", "-v", "manual")
	return nil
}

// tell tells of CHAP.
func tell(run func(args ...string) (string, error), method string, keys []string, secret map[string]string) error {
	update := func(name, value string) error {
		out, err := run("-o", "update", "-n", name, "-v", value)
		if err != nil {
			return fmt.Errorf("failed to update key %q: %s: %w", name, out, err)
		}
		return nil
	}
	if err := update(method, "CHAP"); err != nil {
		return err
	}
	for _, k := range keys {
		if secret[k] == "" {
			continue
		}
		if err := update(k, secret[k]); err != nil {
			return err
		}
	}
	return nil
}

// cloneInterface makes the disk's own interface, which is as the one that is
// configured but for the initiator's name.
func cloneInterface(ctx context.Context, d *disk) error {
	out, err := iscsiadm(ctx, "-m", "iface", "-I", d.Configured, "-o", "show")
	if err != nil {
		return fmt.Errorf("iscsi: failed to show iface records: %s (%w)", out, err)
	}
	if out, err := iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "new"); err != nil && !exits(err, exitExists) {
		return fmt.Errorf("iscsi: failed to create new iface: %s (%w)", out, err)
	}
	settings := interfaceSettings(out)
	settings["iface.initiatorname"] = d.Initiator
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if out, err := iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "update", "-n", name, "-v", settings[name]); err != nil {
			_, _ = iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "delete")
			return fmt.Errorf("iscsi: failed to update iface records: %s (%w)", out, err)
		}
	}
	return nil
}

// interfaceSettings are those of an interface that are set, but for its name.
func interfaceSettings(shown string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(shown, "\n") {
		name, value, ok := strings.Cut(line, " = ")
		value = strings.TrimSpace(value)
		if ok && strings.HasPrefix(name, "iface.") && name != "iface.iscsi_ifacename" && value != "<empty>" {
			out[name] = value
		}
	}
	return out
}
