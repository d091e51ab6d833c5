package node

import (
	"context"
	"fmt"
	"os"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/service"
	"hyperkube/internal/host/layout"
)

// unitTemplate is the template of the systemd unit. The runtime and all containers are in separate cgroups,
// so they keep running when the unit stops. The unit is ordered after multi-user.target, so that a boot does not
// wait for the node.
const unitTemplate = `[Unit]
Description=hyperkube node: kubelet, service proxy and container runtime
Documentation=https://kubernetes.io/docs/
After=network-online.target multi-user.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%s
KillMode=process
Delegate=yes
Restart=always
RestartSec=2
WatchdogSec=2min
TimeoutAbortSec=10s
TimeoutStartSec=infinity
LimitNOFILE=1048576
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// IsUnit reports whether Start runs the node of this machine as a service: if the machine runs systemd or OpenRC and the
// node has the default paths. It does not check that the service exists.
func IsUnit(l layout.Node) bool { return service.HasManager() && l == layout.Default() }

// Start starts the node that init or join has set up: as a service if the machine runs
// systemd or OpenRC, otherwise as a background process. It reports problems while it waits, and returns when
// the node is registered. It fails after bound: the unit then keeps starting, but a background
// process is stopped.
func Start(ctx context.Context, l layout.Node, verbose bool, bound time.Duration, s *progress.Steps) error {
	if IsUnit(l) {
		return startUnit(ctx, bound, s)
	}
	args := []string{"node"}
	if l != layout.Default() {
		args = append(args, "--root="+l.Root())
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

// systemdUnit returns the content of the unit file of the node, which runs a command line.
func systemdUnit(line string) string { return fmt.Sprintf(unitTemplate, line) }

// startUnit installs the service of the node and starts it. It waits until the node is registered, at most for
// bound.
func startUnit(ctx context.Context, bound time.Duration, s *progress.Steps) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	if _, err := service.Node.Install(ctx, service.Definition{
		Description: "Kubernetes node: kubelet, service proxy and container runtime",
		Command:     []string{self, "node"}, SystemdUnit: systemdUnit,
	}); err != nil {
		return err
	}
	return service.Node.Start(ctx, bound, s)
}
