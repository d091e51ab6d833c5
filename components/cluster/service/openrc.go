package service

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"hyperkube/internal/host/layout"
)

const (
	// openRCState is the directory with the state of OpenRC while it manages the services of the machine.
	openRCState = "/run/openrc"
	// initDir is the directory of init scripts, runlevelDir that of links to the scripts that start at boot.
	initDir     = "/etc/init.d"
	runlevelDir = "/etc/runlevels/" + runlevel
	runlevel    = "default"
)

// openRC is the service manager OpenRC. Its supervise-daemon runs the main process and restarts it. Services have no
// ready state in OpenRC, so the process that starts one receives notifications on a socket, as systemd does.
//
// https://github.com/OpenRC/openrc/blob/HEAD/service-script-guide.md
type openRC struct{}

var _ manager = openRC{}

func (openRC) running() bool { return layout.Exists(filepath.Join(openRCState, "softlevel")) }

func (openRC) file(u Unit) string { return filepath.Join(initDir, string(u)) }

func (openRC) describe(u Unit) string { return "OpenRC service " + string(u) }

// log returns the path of the file with the output of the unit, which the process of the unit rotates.
func (openRC) log(Unit) string { return layout.Default().Log(layout.MainProcess) }

// socket returns the path of the socket for notifications of the unit. It exists while starter waits.
func (openRC) socket(u Unit) string { return "/run/" + string(u) + ".notify" }

// initScript is the template of the init scripts, in which words of the form @name@ are replaced.
//
//go:embed openrc.sh
var initScript string

// script returns the init script of the unit. It returns an error if an argument contains a line break, which the
// scripts of OpenRC cannot pass on.
func (o openRC) script(u Unit, d Definition) (string, error) {
	words := make([]string, 0, len(d.Command))
	for _, word := range d.Command {
		if strings.Contains(word, "\n") {
			return "", fmt.Errorf("writing the init script: the argument %q contains a line break", word)
		}
		words = append(words, escapeShell(word))
	}
	log := o.log(u)
	return strings.NewReplacer(
		"@name@", string(u), "@description@", quoteShell(d.Description), "@program@", words[0],
		"@command@", quoteShell(words[0]), "@arguments@", quoteShell(strings.Join(words[1:], " ")),
		"@log@", log, "@logdir@", filepath.Dir(log), "@socket@", o.socket(u),
	).Replace(initScript), nil
}

// escapeShell returns word with a backslash before each character that a shell may treat specially. The shell functions
// of OpenRC first split a command at spaces, join the parts by spaces and then evaluate the result, so quotes would not
// keep repeated spaces.
func escapeShell(word string) string {
	var b strings.Builder
	for _, r := range word {
		if r < 0x80 && !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// quoteShell returns text as one word in single quotes.
func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func (o openRC) install(ctx context.Context, u Unit, d Definition) (changed bool, err error) {
	text, err := o.script(u, d)
	if err != nil {
		return false, err
	}
	if changed, err = writeFile(o.file(u), text, 0o755); err != nil || o.enabled(u) {
		return changed, err
	}
	return changed, run(ctx, "rc-update", "add", string(u), runlevel)
}

// enabled reports whether the unit starts at boot.
func (openRC) enabled(u Unit) bool {
	_, err := os.Lstat(filepath.Join(runlevelDir, string(u)))
	return err == nil
}

// starter implements manager. The unit is stopped before start listens, so that notifications of a process that stops
// are not received.
func (o openRC) starter(u Unit) (start func(context.Context) error, status func(context.Context) string) {
	var text atomic.Pointer[string]
	start = func(ctx context.Context) error {
		if err := o.stop(ctx, u); err != nil {
			return err
		}
		if err := os.Remove(o.socket(u)); err != nil && !errors.Is(err, os.ErrNotExist) { // a killed process leaves it behind
			return fmt.Errorf("removing the socket for notifications: %w", err)
		}
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: o.socket(u), Net: "unixgram"})
		if err != nil {
			return fmt.Errorf("listening for notifications of the service: %w", err)
		}
		defer os.Remove(o.socket(u))
		defer conn.Close()
		if err := run(ctx, "rc-service", string(u), "start"); err != nil {
			return err
		}
		return o.waitReady(ctx, u, conn, func(s string) { text.Store(&s) })
	}
	status = func(context.Context) string {
		if s := text.Load(); s != nil {
			return *s
		}
		return ""
	}
	return start, status
}

// waitReady receives notifications of the unit until it is ready. It returns an error if the process of the unit stops
// before, or ctx is done. It calls report with the status texts of the unit.
func (o openRC) waitReady(ctx context.Context, u Unit, conn *net.UnixConn, report func(text string)) error {
	// A deadline in the past unblocks Read.
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("waiting for the %s to become ready: %w", o.describe(u), err)
		}
		for line := range strings.SplitSeq(string(buf[:n]), "\n") {
			switch key, value, _ := strings.Cut(line, "="); key {
			case "READY":
				return nil
			case "STOPPING":
				return fmt.Errorf("the %s stopped before it was ready; OpenRC keeps restarting it; see `%s`", o.describe(u), o.logCommand(u))
			case "STATUS":
				report(value)
			}
		}
	}
}

func (openRC) stop(ctx context.Context, u Unit) error {
	return run(ctx, "rc-service", string(u), "stop")
}

func (o openRC) remove(ctx context.Context, u Unit) error {
	var errs []error
	if o.running() {
		errs = append(errs, o.stop(ctx, u))
	}
	if o.enabled(u) {
		errs = append(errs, run(ctx, "rc-update", "del", string(u), runlevel))
	}
	return errors.Join(append(errs, removeFile(o.file(u)))...)
}

// mainPID implements manager. It returns 0 also if an old version of OpenRC does not save the PID.
func (openRC) mainPID(_ context.Context, u Unit) (int, error) {
	data, err := os.ReadFile(filepath.Join(openRCState, "options", string(u), "child_pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the OpenRC service: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the OpenRC service: %w", err)
	}
	return pid, nil
}

func (openRC) startCommand(u Unit) string { return "rc-service " + string(u) + " start" }

func (o openRC) logCommand(u Unit) string { return "tail -n 100 " + o.log(u) }

// OpenRCStopsPods reports whether the machine runs OpenRC and a service of hyperkube is installed, which stops the pods
// when the machine shuts down.
func OpenRCStopsPods() bool {
	l := layout.Default()
	return openRC{}.running() && (Cluster.Exists(l) || Node.Exists(l))
}
