// Package service manages the services of the machine's service manager, systemd or OpenRC, that run hyperkube at boot.
package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
)

// Unit is the name of a service of hyperkube: a unit of systemd or an init script of OpenRC. Only a cluster with the
// default paths has one, not clusters with --root.
type Unit string

// The services of hyperkube.
const (
	// Cluster runs the cluster that `up` creates.
	Cluster Unit = "hyperkube"
	// Node runs the node that init or join sets up.
	Node Unit = "hyperkube-node"
)

// Definition describes what a service runs.
type Definition struct {
	// Description is one line for users.
	Description string
	// Command is the path of the program, and its arguments.
	Command []string
	// SystemdUnit returns the content of the unit file that runs a command line, in which arguments are quoted.
	SystemdUnit func(line string) string
}

// manager is a service manager. Its methods take units that are installed, unless they state otherwise.
type manager interface {
	// running reports whether it is the service manager of this machine.
	running() bool
	// file returns the path of the file that defines the unit, which may be missing.
	file(u Unit) string
	// describe returns the kind and the name of the unit for messages.
	describe(u Unit) string
	// install writes the file of the unit, which may be missing, and enables it at boot. It does not start the unit. It
	// reports whether the content of the file changed.
	install(ctx context.Context, u Unit, d Definition) (changed bool, err error)
	// starter returns a function that restarts the unit, or starts it, and waits until it is ready; and one that returns
	// what the unit waits for meanwhile, or "". The two may be called concurrently.
	starter(u Unit) (start func(context.Context) error, status func(context.Context) string)
	// stop stops the unit until the next boot.
	stop(ctx context.Context, u Unit) error
	// remove stops the unit, disables it and removes its file. If the manager does not run, it removes only files.
	remove(ctx context.Context, u Unit) error
	// mainPID returns the PID of the main process of the unit; 0 if it does not run.
	mainPID(ctx context.Context, u Unit) (int, error)
	// startCommand returns the command with which users start the unit, logCommand the one that prints its log.
	startCommand(u Unit) string
	logCommand(u Unit) string
}

// managers are the supported service managers.
var managers = []manager{systemd{}, openRC{}}

// current returns the service manager of this machine. It returns systemd if none runs.
func current() manager {
	for _, m := range managers {
		if m.running() {
			return m
		}
	}
	return managers[0]
}

// HasManager reports whether the machine runs a supported service manager.
func HasManager() bool { return current().running() }

// HasSystemd reports whether the machine runs systemd.
func HasSystemd() bool { return systemd{}.running() }

// File returns the path of the file that defines the unit.
func (u Unit) File() string { return current().file(u) }

// Describe returns the kind and the name of the unit for messages, for example "systemd unit hyperkube.service".
func (u Unit) Describe() string { return current().describe(u) }

// Exists reports whether the unit is installed on a machine that runs the service manager. It returns false if l are
// not the default paths, because only the cluster with these has a unit.
func (u Unit) Exists(l layout.Node) bool {
	return HasManager() && layout.Exists(u.File()) && l == layout.Default()
}

// Install writes the file of the unit and enables the unit, so that it starts at boot. It does not start the unit. It
// reports whether the content of the file changed.
func (u Unit) Install(ctx context.Context, d Definition) (changed bool, err error) {
	return current().install(ctx, u, d)
}

// Start restarts the unit, or starts it, and waits until it is ready. It sends the unit's status to s while it waits.
// It fails after bound; the service manager then keeps starting the unit.
func (u Unit) Start(ctx context.Context, bound time.Duration, s *progress.Steps) error {
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: bound,
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Hint:   "it keeps starting in the background; see `" + u.LogCommand() + "`",
	}
	start, status := current().starter(u)
	return p.Wait(ctx, "the "+u.Describe(), status, start)
}

// StartCommand returns the command with which users start the unit.
func (u Unit) StartCommand() string { return current().startCommand(u) }

// LogCommand returns the command that prints the unit's log.
func (u Unit) LogCommand() string { return current().logCommand(u) }

// MainPID returns the PID of the unit's main process; 0 if it does not run.
func (u Unit) MainPID(ctx context.Context) (int, error) { return current().mainPID(ctx, u) }

// Stop stops the unit of the cluster with the paths l: the service manager would restart a process that just exits. It
// reports whether there is a unit. The unit starts again at the next boot.
func (u Unit) Stop(ctx context.Context, l layout.Node) (stopped bool, err error) {
	if !u.Exists(l) {
		return false, nil
	}
	return true, current().stop(ctx, u)
}

// Remove stops the unit of the cluster with the paths l and deletes it, so that it does not start at boot. It reports
// whether there was one, which is false if l are not the default paths. It also deletes the files of service managers
// that do not run.
func (u Unit) Remove(ctx context.Context, l layout.Node) (removed bool, err error) {
	if l != layout.Default() {
		return false, nil
	}
	var errs []error
	for _, m := range managers {
		if layout.Exists(m.file(u)) {
			removed = true
			errs = append(errs, m.remove(ctx, u))
		}
	}
	return removed, errors.Join(errs...)
}

// writeFile writes the file that defines a unit, unless it has the content text. It reports whether the file changed.
func writeFile(path, text string, mode os.FileMode) (changed bool, err error) {
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("reading the file of the service: %w", err)
	}
	if err == nil && bytes.Equal(before, []byte(text)) {
		return false, nil
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: []byte(text), Mode: mode}); err != nil {
		return false, fmt.Errorf("writing the file of the service: %w", err)
	}
	return true, nil
}

// removeFile removes the file that defines a unit, if it exists.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the file of the service: %w", err)
	}
	return nil
}

// run runs a program of the service manager. Its error contains the output.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
