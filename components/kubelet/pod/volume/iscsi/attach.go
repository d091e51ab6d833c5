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

	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/base/lifecycle"
)

// minPaths and maxAttempts limit the attempts to reach a disk through all its portals, as in upstream, so that a
// pod can start although a portal is down.
const (
	// minPaths portals are sufficient from the second attempt on; in the last attempt one is.
	minPaths    = 2
	maxAttempts = 5
)

// defaultDeviceTimeout is how long the kubelet waits for the device of a disk to appear after a scan, and
// multipathTimeout how long for its multipath device, as in upstream.
const (
	defaultDeviceTimeout = 30 * time.Second
	multipathTimeout     = 10 * time.Second
	// pollInterval is the polling interval: the kernel notifies about neither through a file that can
	// be watched.
	pollInterval = 50 * time.Millisecond
)

// exitNoSession, exitExists and exitNoObjects are exit codes of iscsiadm: no session found, session exists already,
// no record found.
const (
	exitNoSession = 2
	exitExists    = 15
	exitNoObjects = 21
)

// discoverySecrets and sessionSecrets are the keys of Secrets for CHAP authentication, at discovery and at login.
// They are also the names of the settings of iscsiadm that get the values.
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

// chap is the configuration of CHAP authentication between initiator and target.
type chap struct {
	discovery, session bool
	secret             map[string]string
}

// iscsiadm runs the program iscsiadm of open-iscsi. Its errors do not contain the arguments, which
// may be secret.
func iscsiadm(ctx context.Context, args ...string) (string, error) {
	out, err := volume.RunTool(ctx, "iscsiadm", args...)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return strings.TrimSpace(out), err
}

// exitedWith reports whether err means that a program has exited with one of the exit codes.
func exitedWith(err error, codes ...int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && slices.Contains(codes, exit.ExitCode())
}

// attach attaches a disk to the node through its portals, and returns the path of its device: the multipath
// device if the host has one, otherwise that of one portal. It fails if no portal is reachable. Otherwise it
// retries the unreachable ones, until two are reachable or after maxAttempts. The caller must hold the target's
// lock.
func (p *Plugin) attach(ctx context.Context, d *disk, c chap) (string, error) {
	devices := map[string]string{}
	var last error
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		for _, portal := range d.Portals {
			if devices[portal] != "" {
				continue
			}
			device, err := p.attachThrough(ctx, d, portal, c)
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
		if len(devices) == len(d.Portals) || len(devices) >= minPaths && attempt > 1 {
			break
		}
	}
	within := time.Duration(0)
	if len(d.Portals) > 1 {
		within = multipathTimeout
	}
	names := slices.Sorted(maps.Values(devices))
	name, err := p.poll(ctx, within, func() string {
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

// poll calls look every pollInterval until it returns a result or within has passed, and returns the last
// result, which may be "". It calls look at least once. The error is that of ctx.
func (p *Plugin) poll(ctx context.Context, within time.Duration, look func() string) (string, error) {
	end := time.Now().Add(within)
	for {
		if found := look(); found != "" || !time.Now().Before(end) {
			return found, nil
		}
		if !lifecycle.Pause(ctx, pollInterval) {
			return "", ctx.Err()
		}
	}
}

// attachThrough attaches the disk through one portal, and returns the name of its device, such as sdb. It
// logs in to the target unless there is a session, and waits until the kernel has created the device.
func (p *Plugin) attachThrough(ctx context.Context, d *disk, portal string, c chap) (string, error) {
	sessions, err := p.kernel.sessions(d.Target, d.Interface)
	if err != nil {
		return "", err
	}
	s := sessionWithPortal(sessions, portal)
	if s == nil {
		if err := login(ctx, d, portal, c); err != nil {
			return "", err
		}
		if sessions, err = p.kernel.sessions(d.Target, d.Interface); err != nil {
			return "", err
		}
		if s = sessionWithPortal(sessions, portal); s == nil {
			return "", fmt.Errorf("iscsi: no session through portal %s after logging in", portal)
		}
	}
	if name := s.device(d.LUN); name != "" {
		return name, nil
	}
	if err := p.kernel.scan(s, d.LUN); err != nil {
		return "", err
	}
	name, err := p.poll(ctx, p.deviceTimeout, func() string { return s.device(d.LUN) })
	if err == nil && name == "" {
		err = fmt.Errorf("iscsi: no device for LUN %d of %s through portal %s after %v", d.LUN, d.Target, portal, p.deviceTimeout)
	}
	return name, err
}

// login discovers the target through a portal and creates a session with it. c is the CHAP configuration. If the
// volume specifies an initiator name, login first creates an iscsiadm interface with it. An existing session is no
// error.
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
	// The record may exist already; other errors show in the following calls.
	_, _ = discover("-o", "new")
	if c.discovery {
		if err := configureCHAP(discover, "discovery.sendtargets.auth.authmethod", discoverySecrets, c.secret); err != nil {
			return fmt.Errorf("iscsi: failed to update discoverydb to portal %s error: %w", portal, err)
		}
	}
	if out, err := discover("--discover"); err != nil {
		_, _ = discover("-o", "delete")
		return fmt.Errorf("iscsi: failed to sendtargets to portal %s output: %s, err %w", portal, out, err)
	}
	// The kernel must scan only for the requested disks. Old versions of open-iscsi do not support
	// this setting.
	_, _ = node("-o", "update", "-n", "node.session.scan", "-v", "manual")
	if c.session {
		if err := configureCHAP(node, "node.session.auth.authmethod", sessionSecrets, c.secret); err != nil {
			return fmt.Errorf("iscsi: failed to update iscsi node to portal %s error: %w", portal, err)
		}
	}
	if out, err := node("--login"); err != nil && !exitedWith(err, exitExists) {
		_, _ = node("-o", "delete")
		return fmt.Errorf("iscsi: failed to attach disk: Error: %s (%w)", out, err)
	}
	// The machine must not wait for the target when it boots.
	_, _ = node("-o", "update", "-n", "node.startup", "-v", "manual")
	return nil
}

// configureCHAP enables CHAP in a record of iscsiadm. run runs iscsiadm for the record, method is the name of
// the setting for the authentication method, and keys are the names of the settings whose values are in
// secret. Missing values are not set.
func configureCHAP(run func(args ...string) (string, error), method string, keys []string, secret map[string]string) error {
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

// cloneInterface creates an iscsiadm interface for the disk only: a copy of the configured one with the
// initiator name of the volume.
func cloneInterface(ctx context.Context, d *disk) error {
	out, err := iscsiadm(ctx, "-m", "iface", "-I", d.Configured, "-o", "show")
	if err != nil {
		return fmt.Errorf("iscsi: failed to show iface records: %s (%w)", out, err)
	}
	if out, err := iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "new"); err != nil && !exitedWith(err, exitExists) {
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

// interfaceSettings parses the settings of an interface, except its name and empty settings, from the output of
// iscsiadm.
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
