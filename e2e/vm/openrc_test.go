package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	initScript   = "/etc/init.d/hyperkube"
	runlevelLink = "/etc/runlevels/default/hyperkube"
	mainLog      = "/var/lib/hyperkube/logs/hyperkube.log"
)

// TestOpenRC runs a cluster as a service of OpenRC. The supervisor restarts the main process, whose log is rotated, and pods
// keep running meanwhile. They stop in order before a reboot, and run again after it. Then the service is removed.
func TestOpenRC(t *testing.T) {
	m := newMachine(t, "openrc")
	m.stages(
		stage{"service", func() {
			m.up("--service")
			m.serviceStarted()
			m.wait("condition=Ready", "node/hk")
			if err := os.MkdirAll(m.out(), 0o755); err != nil {
				t.Fatal(err)
			}
			m.apply(fmt.Sprintf(shutdownPods, m.out()))
			m.awaitStarts(1)
			m.killMain()
			m.eventually("the kubelet to know the pod", func() error {
				_, err := m.command("kubectl", "exec", "hook", "--", "true")
				return err
			})
			m.awaitStarts(1)
			m.write(filepath.Join(m.dir, "requested"), m.read("/proc/uptime"))
		}, reboot},
		stage{"end", func() {
			m.Logf("uptime when the reboot was requested: %s, and when the pods stopped: hook %v, critical %v",
				strings.Fields(m.read(filepath.Join(m.dir, "requested")))[0], m.lines("hook", "stop"), m.lines("critical", "stop"))
			m.stoppedInOrder(1)
			m.awaitStarts(2)
			m.serviceStarted()
			m.up("--service=false")
			m.serviceRemoved()
			m.awaitStarts(2)
			m.run("hyperkube", "reset")
		}, ""},
	)
}

// killMain kills the main process when its log has reached its limit, and waits until another one has rotated the log.
func (m *machine) killMain() {
	m.Helper()
	const limit = 20_000_000
	if err := os.Truncate(mainLog, limit); err != nil {
		m.Fatal(err)
	}
	killed := m.supervised()
	m.run("kill", "-KILL", killed)
	m.eventually("another main process", func() error {
		if got := m.supervised(); got == killed {
			return fmt.Errorf("the process is still %s", got)
		}
		return nil
	})
	m.eventually("the rotation of the log", func() error {
		info, err := os.Stat(mainLog)
		if err == nil && info.Size() >= limit {
			err = fmt.Errorf("the log has %d bytes", info.Size())
		}
		return err
	})
	if rotated, err := filepath.Glob(mainLog + ".*"); err != nil || len(rotated) != 1 {
		m.Errorf("rotated logs: %v, %v", rotated, err)
	}
}

// serviceStarted checks that the service starts at boot and has started.
func (m *machine) serviceStarted() {
	m.Helper()
	if _, err := os.Stat(runlevelLink); err != nil {
		m.Error("the service does not start at boot:", err)
	}
	m.Log(m.run("rc-service", "hyperkube", "status"))
}

// serviceRemoved checks that no file of the service is left.
func (m *machine) serviceRemoved() {
	m.Helper()
	for _, path := range []string{initScript, runlevelLink, "/run/openrc/started/hyperkube", "/run/supervise-hyperkube.pid"} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			m.Errorf("%s is left: %v", path, err)
		}
	}
}

// supervised returns the process ID of the main process that the supervisor has started.
func (m *machine) supervised() string {
	m.Helper()
	return strings.TrimSpace(m.read("/run/openrc/options/hyperkube/child_pid"))
}
