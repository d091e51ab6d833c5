package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// unitDir is the directory of units that the administrator installs.
const unitDir = "/etc/systemd/system"

// systemd is the service manager systemd.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
type systemd struct{}

var _ manager = systemd{}

func (systemd) running() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// name returns the name of the unit for systemctl.
func (systemd) name(u Unit) string { return string(u) + ".service" }

func (s systemd) file(u Unit) string { return filepath.Join(unitDir, s.name(u)) }

func (s systemd) describe(u Unit) string { return "systemd unit " + s.name(u) }

func (s systemd) install(ctx context.Context, u Unit, d Definition) (changed bool, err error) {
	words := []string{Quote(d.Command[0])}
	for _, argument := range d.Command[1:] {
		if strings.Trim(argument, "abcdefghijklmnopqrstuvwxyz-") != "" {
			argument = quoteArgument(argument)
		}
		words = append(words, argument)
	}
	if changed, err = writeFile(s.file(u), d.SystemdUnit(strings.Join(words, " ")), 0o644); err != nil {
		return false, err
	}
	return changed, errors.Join(Systemctl(ctx, "daemon-reload"), Systemctl(ctx, "enable", s.name(u)))
}

func (s systemd) starter(u Unit) (start func(context.Context) error, status func(context.Context) string) {
	start = func(ctx context.Context) error { return Systemctl(ctx, "restart", s.name(u)) }
	status = func(ctx context.Context) string {
		text, _ := s.property(ctx, u, "StatusText") // no text is shown if systemctl fails
		return text
	}
	return start, status
}

func (s systemd) stop(ctx context.Context, u Unit) error { return Systemctl(ctx, "stop", s.name(u)) }

func (s systemd) remove(ctx context.Context, u Unit) error {
	if !s.running() {
		return removeFile(s.file(u))
	}
	return errors.Join(Systemctl(ctx, "disable", "--now", s.name(u)), removeFile(s.file(u)), Systemctl(ctx, "daemon-reload"))
}

func (s systemd) mainPID(ctx context.Context, u Unit) (int, error) {
	text, err := s.property(ctx, u, "MainPID")
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the systemd unit: %w", err)
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("getting the main process of the systemd unit: %w", err)
	}
	return pid, nil
}

// property returns the value of a property of the unit.
func (s systemd) property(ctx context.Context, u Unit, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property="+name, "--value", s.name(u)).Output()
	return strings.TrimSpace(string(out)), err
}

func (systemd) startCommand(u Unit) string { return "systemctl start " + string(u) }

func (systemd) logCommand(u Unit) string { return "journalctl -u " + string(u) }

// Quote quotes and escapes an argument of a command line in a unit, because it may contain spaces and
// special characters.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines
func Quote(argument string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(argument) + `"`
}

// quoteArgument is Quote for an argument other than the program, in which systemd also replaces environment
// variables.
func quoteArgument(argument string) string { return strings.ReplaceAll(Quote(argument), "$", "$$") }

// Systemctl runs systemctl. Its error contains the output.
func Systemctl(ctx context.Context, args ...string) error { return run(ctx, "systemctl", args...) }
