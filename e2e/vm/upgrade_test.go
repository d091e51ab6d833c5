package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// previous is the program of an earlier version without hyperkube-pods.service, which scripts/vm/run-tests copies if $PREVIOUS
// is set.
const previous = "/usr/local/lib/hyperkube/previous"

// TestPodsOfEarlierVersion upgrades a cluster whose pods run outside of the unit. They keep running where they are, stop in
// order at the next shutdown, and run in the unit after the boot.
func TestPodsOfEarlierVersion(t *testing.T) {
	m := newMachine(t, "bookworm", "trixie")
	if _, err := os.Stat(previous); err != nil {
		t.Skip("needs the program of an earlier version:", err)
	}
	group := func() string {
		t.Helper()
		return strings.TrimSpace(m.read(filepath.Join("/proc", m.run("pgrep", "-f", "^sleep 424242"), "cgroup")))
	}
	m.stages(
		stage{"upgrade", func() {
			m.Log(m.run(previous, "up"))
			m.importBusybox()
			m.apply(sleeper)
			m.wait("condition=Ready", "pod/sleeper")
			pid := m.run("pgrep", "-f", "^sleep 424242")
			m.Log(m.run("hyperkube", "up"))
			if got := m.run("pgrep", "-f", "^sleep 424242"); got != pid {
				t.Errorf("the process of the pod is %s, not %s", got, pid)
			}
			if got := group(); !strings.HasPrefix(got, "0::/kubepods/") {
				t.Errorf("the pod has moved to %s", got)
			}
			m.kubectl("exec", "sleeper", "--", "true")
		}, reboot},
		stage{"boot", func() {
			m.orderlyShutdown()
			m.Log(m.run("hyperkube", "up"))
			m.eventually("the pod to run", func() error {
				_, err := m.command("pgrep", "-f", "^sleep 424242")
				return err
			})
			m.wait("condition=Ready", "pod/sleeper")
			if got := group(); !strings.HasPrefix(got, "0::/hyperkube-pods.service/") {
				t.Errorf("the pod is in the cgroup %s", got)
			}
			m.run("hyperkube", "reset")
		}, ""},
	)
}
