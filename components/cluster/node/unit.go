package node

import (
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

// The systemd unit that runs the node of a machine set up with init or join. Only a cluster with
// the default paths has one, not clusters with --root.
const (
	unitName = "hyperkube-node.service"
	unitFile = "/etc/systemd/system/" + unitName
)

// unitTemplate is the template of the systemd unit. The runtime and all containers are in separate cgroups,
// so they keep running when the unit stops.
const unitTemplate = `[Unit]
Description=hyperkube node: kubelet, service proxy and container runtime
Documentation=https://kubernetes.io/docs/
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%s node
KillMode=process
Delegate=yes
Restart=always
RestartSec=2
TimeoutStartSec=infinity
LimitNOFILE=1048576
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// hasSystemd reports whether the machine runs systemd.
func hasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// IsUnit reports whether the node of this machine is a systemd unit.
func IsUnit(l layout.Node) bool { return hasSystemd() && l == layout.Default() }

// Start starts the node that init or join has set up: as a systemd unit if the machine runs
// systemd, otherwise as a background process. It reports problems while it waits, and returns when
// the node is registered. It fails after bound: the unit then keeps starting, but a background
// process is stopped.
func Start(ctx context.Context, l layout.Node, verbose bool, bound time.Duration, s *progress.Steps) error {
	if IsUnit(l) {
		return startUnit(ctx, bound, s)
	}
	args := []string{"node"}
	if l != layout.Default() {
		args = append(args, "--root="+strings.TrimSuffix(l.Data, layout.Default().Data))
	}
	if verbose {
		args = append(args, "--verbose")
	}
	log := l.Log(layout.MainProcess)
	status := "no status reported"
	bounded, cancel := context.WithTimeoutCause(ctx, bound, progress.ErrTimeout)
	defer cancel()
	err := progress.StartBackground(bounded, args, log, func(st progress.Step) {
		if st.Waiting {
			status = st.Text
		}
		if st.Waiting || !st.Ready && st.Error == "" {
			s.Send(st)
		}
	})
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("timed out after %s waiting for the node: %s; see %s and the container logs in %s", bound, status, log, l.PodLogs)
	}
	return err
}

func startUnit(ctx context.Context, bound time.Duration, s *progress.Steps) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	file := atomicfile.File{Path: unitFile, Data: fmt.Appendf(nil, unitTemplate, unitPath(self)), Mode: 0o644}
	if err := atomicfile.Write(file); err != nil {
		return fmt.Errorf("writing the systemd unit: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitName}} {
		if err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: bound,
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Hint:   "it keeps starting in the background; see `journalctl -u " + unitName + "`",
	}
	return p.Wait(ctx, "the unit "+unitName, unitStatus, func(ctx context.Context) error {
		return systemctl(ctx, "restart", unitName)
	})
}

// unitStatus returns the status text of the unit; "" if it has none.
func unitStatus(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=StatusText", "--value", unitName).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// StopUnit stops the systemd unit, which would restart a process that just exits. It reports
// whether there is a unit. The unit starts again at the next boot.
func StopUnit(ctx context.Context, l layout.Node) (stopped bool, err error) {
	if _, err := os.Stat(unitFile); err != nil || !IsUnit(l) {
		return false, nil
	}
	return true, systemctl(ctx, "stop", unitName)
}

// unitPath quotes and escapes the path of a program for a systemd unit, because it may contain
// spaces and special characters.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines
func unitPath(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(path) + `"`
}

// RemoveUnit deletes the unit that startUnit created, if there is one.
func RemoveUnit(ctx context.Context, l layout.Node) error {
	if l != layout.Default() {
		return nil
	}
	if _, err := os.Stat(unitFile); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	if hasSystemd() {
		errs = append(errs, systemctl(ctx, "disable", "--now", unitName))
	}
	if err := os.Remove(unitFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("removing the systemd unit: %w", err))
	}
	if hasSystemd() {
		errs = append(errs, systemctl(ctx, "daemon-reload"))
	}
	return errors.Join(errs...)
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
