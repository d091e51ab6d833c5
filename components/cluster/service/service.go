// Package service manages the systemd units that run hyperkube at boot.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
)

// Unit is the name of a systemd unit.
type Unit string

// The units of hyperkube. Only a cluster with the default paths has one, not clusters with --root.
const (
	// Cluster runs the cluster that `up` creates.
	Cluster Unit = "hyperkube.service"
	// Node runs the node that init or join sets up.
	Node Unit = "hyperkube-node.service"
)

// unitDir is the directory of units that the administrator installs.
const unitDir = "/etc/systemd/system"

// HasSystemd reports whether the machine runs systemd.
func HasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// File returns the path of the unit file.
func (u Unit) File() string { return filepath.Join(unitDir, string(u)) }

// Exists reports whether the unit is installed on a machine that runs systemd. It returns false if l are not the
// default paths, because only the cluster with these has a unit.
func (u Unit) Exists(l layout.Node) bool {
	_, err := os.Stat(u.File())
	return err == nil && HasSystemd() && l == layout.Default()
}

// Install writes the unit file and enables the unit, so that it starts at boot. It does not start the
// unit. It reports whether the content of the file changed.
func (u Unit) Install(ctx context.Context, text []byte) (changed bool, err error) {
	before, err := os.ReadFile(u.File())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("reading the systemd unit: %w", err)
	}
	if changed = err != nil || !bytes.Equal(before, text); changed {
		if err := atomicfile.Write(atomicfile.File{Path: u.File(), Data: text, Mode: 0o644}); err != nil {
			return false, fmt.Errorf("writing the systemd unit: %w", err)
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", string(u)}} {
		if err := Systemctl(ctx, args...); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Start restarts the unit, or starts it, and waits until it is ready. It sends the unit's status to s while it waits.
// It fails after bound; systemd then keeps starting the unit.
func (u Unit) Start(ctx context.Context, bound time.Duration, s *progress.Steps) error {
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: bound,
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Hint:   "it keeps starting in the background; see `" + u.LogCommand() + "`",
	}
	return p.Wait(ctx, "the unit "+string(u), u.status, func(ctx context.Context) error {
		return Systemctl(ctx, "restart", string(u))
	})
}

// LogCommand returns the command that prints the unit's log.
func (u Unit) LogCommand() string {
	return "journalctl -u " + strings.TrimSuffix(string(u), ".service")
}

// MainPID returns the PID of the unit's main process; 0 if it does not run.
func (u Unit) MainPID(ctx context.Context) (int, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=MainPID", "--value", string(u)).Output()
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the systemd unit: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the systemd unit: %w", err)
	}
	return pid, nil
}

// status returns the status text of the unit; "" if it has none or systemctl fails.
func (u Unit) status(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=StatusText", "--value", string(u)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Stop stops the unit of the cluster with the paths l: systemd would restart a process that just exits. It reports
// whether there is a unit. The unit starts again at the next boot.
func (u Unit) Stop(ctx context.Context, l layout.Node) (stopped bool, err error) {
	if !u.Exists(l) {
		return false, nil
	}
	return true, Systemctl(ctx, "stop", string(u))
}

// Remove stops the unit of the cluster with the paths l and deletes it, so that it does not start at boot. It reports
// whether there was one, which is false if l are not the default paths.
func (u Unit) Remove(ctx context.Context, l layout.Node) (removed bool, err error) {
	if l != layout.Default() {
		return false, nil
	}
	if _, err := os.Stat(u.File()); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	var errs []error
	if HasSystemd() {
		errs = append(errs, Systemctl(ctx, "disable", "--now", string(u)))
	}
	if err := os.Remove(u.File()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("removing the systemd unit: %w", err))
	}
	if HasSystemd() {
		errs = append(errs, Systemctl(ctx, "daemon-reload"))
	}
	return true, errors.Join(errs...)
}

// Quote quotes and escapes an argument of a command line in a unit, because it may contain spaces and
// special characters.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines
func Quote(argument string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(argument) + `"`
}

// QuoteArgument is Quote for an argument other than the program, in which systemd also replaces environment
// variables.
func QuoteArgument(argument string) string { return strings.ReplaceAll(Quote(argument), "$", "$$") }

// Systemctl runs systemctl. Its error contains the output.
func Systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
