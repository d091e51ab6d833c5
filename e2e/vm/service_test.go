package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sleeper is a pod whose command line identifies its process on the host.
const sleeper = `
apiVersion: v1
kind: Pod
metadata: {name: sleeper}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: ` + busybox + `, command: [sleep, "424242"]}]
`

// TestService checks that one unit contains the runtime and all pods, and that pods keep running when the service hangs, is
// restarted with another file, and is removed.
func TestService(t *testing.T) {
	m := newMachine(t, "bookworm", "trixie")
	before := m.takeState()
	m.up("--service")
	units := m.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "hyperkube*")
	m.apply(sleeper)
	m.wait("condition=Ready", "pod/sleeper")
	pid := m.run("pgrep", "-f", "^sleep 424242")

	m.Log(m.run("systemd-cgls", "--no-pager", "--unit", "hyperkube-pods.service"))
	for what, process := range map[string]string{"the pod": pid, "the runtime": strings.TrimSpace(m.read("/run/hyperkube/runtime.pid"))} {
		group := m.read(filepath.Join("/proc", process, "cgroup"))
		if !strings.HasPrefix(group, "0::/hyperkube-pods.service/") {
			t.Errorf("the cgroup of %s is %q", what, group)
		}
	}
	if after := m.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "hyperkube*"); len(strings.Split(after, "\n")) != len(strings.Split(units, "\n")) {
		t.Errorf("a pod has changed the units of systemd:\n%s\nbefore:\n%s", after, units)
	}
	running := func(when string) {
		t.Helper()
		if got := m.run("pgrep", "-f", "^sleep 424242"); got != pid {
			t.Errorf("after %s, the process of the pod is %s, not %s", when, got, pid)
		}
		m.kubectl("exec", "sleeper", "--", "true")
		if got := m.kubectl("get", "pod", "sleeper", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); got != "0" {
			t.Errorf("after %s, the pod has restarted %s times", when, got)
		}
	}

	hanging := m.mainPID()
	m.run("kill", "-STOP", hanging)
	m.awaitRestart(hanging)
	if log := m.run("journalctl", "--no-pager", "-b", "-u", "hyperkube.service"); !strings.Contains(log, "Watchdog timeout") {
		t.Errorf("the watchdog has not restarted the service:\n%s", log)
	}
	running("the restart by the watchdog")

	const program = "/usr/local/bin/hyperkube"
	m.run("cp", program, program+".new")
	m.run("mv", program+".new", program)
	replaced := m.mainPID()
	m.run("systemctl", "restart", "hyperkube.service")
	m.awaitRestart(replaced)
	running("the replacement of the program")

	m.up("--service=false")
	if out, err := m.command("systemctl", "cat", "hyperkube.service"); err == nil {
		t.Errorf("the unit is left:\n%s", out)
	}
	running("the removal of the service")

	m.run("hyperkube", "reset")
	m.restored(before)
}

// mainPID returns the process ID of the service.
func (m *machine) mainPID() string {
	m.Helper()
	return m.run("systemctl", "show", "--property=MainPID", "--value", "hyperkube.service")
}

// awaitRestart waits until the service has another process than the one with the process ID before, and is ready.
func (m *machine) awaitRestart(before string) {
	m.Helper()
	m.eventually("the restart of the service", func() error {
		pid := m.mainPID()
		state := m.run("systemctl", "show", "--property=ActiveState", "--value", "hyperkube.service")
		if slices.Contains([]string{before, "0"}, pid) || state != "active" {
			return fmt.Errorf("process %s is %s", pid, state)
		}
		return nil
	})
}

// read returns the content of a file.
func (m *machine) read(path string) string {
	m.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}
