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
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/layout"
)

// The unit of systemd that runs the node of a machine which init or join has
// set up. Only the usual places have one: other clusters on a machine are
// guests.
const (
	unitName = "hyperkube-node.service"
	unitFile = "/etc/systemd/system/" + unitName
)

// unit is what systemd is told. The runtime and all containers are in cgroups
// of their own and outlive the process that started them.
const unit = `[Unit]
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

// hasSystemd tells whether systemd runs this machine.
func hasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// IsUnit tells whether systemd runs the node of this machine.
func IsUnit(l layout.Node) bool { return hasSystemd() && l == layout.Default() }

// Start starts the node that init or join has set up: under systemd where
// that runs, else in the background. It returns when the node is known to the
// cluster, says meanwhile what stands in the way, and fails after bound; in the background
// it does not go on then.
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
	waitsFor := "the node"
	bounded, cancel := context.WithTimeoutCause(ctx, bound, progress.ErrTooLong)
	defer cancel()
	err := progress.StartBackground(bounded, args, log, func(st progress.Step) {
		if st.Waiting {
			waitsFor = st.Text
		}
		if st.Waiting || !st.Ready && st.Error == "" {
			s.Send(st)
		}
	})
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("the node was not ready within %s, but %s; see %s and the logs below %s", bound, waitsFor, log, l.PodLogs)
	}
	return err
}

func startUnit(ctx context.Context, bound time.Duration, s *progress.Steps) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	file := atomicfile.File{Path: unitFile, Data: fmt.Appendf(nil, unit, unitPath(self)), Mode: 0o644}
	if err := atomicfile.Write(file); err != nil {
		return fmt.Errorf("writing the unit of systemd: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitName}} {
		if err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	p := progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord, Bound: bound,
		Say:    func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Advice: "it goes on; see `journalctl -u " + unitName + "`",
	}
	return p.Wait(ctx, "the unit "+unitName, unitStatus, func(ctx context.Context) error {
		return systemctl(ctx, "restart", unitName)
	})
}

// unitStatus is what the unit says of itself; "" if it says nothing.
func unitStatus(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=StatusText", "--value", unitName).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// StopUnit has systemd stop the unit, which would start it again if its process just
// ended, and tells whether there was one. It starts again with the machine.
func StopUnit(ctx context.Context, l layout.Node) (stopped bool, err error) {
	if _, err := os.Stat(unitFile); err != nil || !IsUnit(l) {
		return false, nil
	}
	return true, systemctl(ctx, "stop", unitName)
}

// unitPath is the path of a program as a unit of systemd has it: in quotes, for it may
// have spaces, and with what means something to systemd escaped.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines
func unitPath(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(path) + `"`
}

// RemoveUnit takes away what startUnit made, if it did.
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
		errs = append(errs, fmt.Errorf("removing the unit of systemd: %w", err))
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
