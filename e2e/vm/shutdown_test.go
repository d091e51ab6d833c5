package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shutdownPods are pods without a controller. Each appends a line to a file of its name in the directory %[1]s when it starts and
// when it stops. A line "stop" contains the uptime of the machine. The pod stubborn ignores SIGTERM, and its grace period
// is longer than the machine waits.
const shutdownPods = `
apiVersion: v1
kind: Pod
metadata: {name: stubborn}
spec:
  terminationGracePeriodSeconds: 3600
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "trap '' TERM; echo start >>/out/stubborn; while :; do sleep 1; done"]
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: "%[1]s"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: hook}
spec:
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "echo start >>/out/hook; exec sleep 100000"]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo stop $(cut -d' ' -f1 /proc/uptime) >>/out/hook"]}}}
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: "%[1]s"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: critical}
spec:
  priorityClassName: system-node-critical
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "echo start >>/out/critical; trap 'echo stop $(cut -d\" \" -f1 /proc/uptime) >>/out/critical; exit 0' TERM; while :; do sleep 1; done"]
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: "%[1]s"}}]
`

// shutdownNames are the names of shutdownPods.
var shutdownNames = []string{"stubborn", "hook", "critical"}

// TestShutdown reboots a machine on which a service runs the cluster, and then one on which `hyperkube up` has started it.
// Each time the pods stop in order, within a bound, and run again after the boot.
func TestShutdown(t *testing.T) {
	m := newMachine(t, "bookworm", "trixie")
	m.stages(
		stage{"service", func() {
			m.up("--service")
			if err := os.MkdirAll(m.out(), 0o755); err != nil {
				t.Fatal(err)
			}
			m.apply(fmt.Sprintf(shutdownPods, m.out()))
			m.awaitStarts(1)
		}, reboot},
		stage{"background", func() {
			m.stoppedInOrder(1)
			m.orderlyShutdown()
			m.awaitStarts(2)
			m.up("--service=false")
		}, reboot},
		stage{"end", func() {
			m.stoppedInOrder(2)
			m.orderlyShutdown()
			m.up()
			m.awaitStarts(3)
			m.run("hyperkube", "reset")
		}, ""},
	)
}

// out returns the directory in which shutdownPods write.
func (m *machine) out() string { return filepath.Join(m.dir, "out") }

// awaitStarts waits until each of shutdownPods is ready and has started n times.
func (m *machine) awaitStarts(n int) {
	m.Helper()
	for _, pod := range shutdownNames {
		m.eventually(fmt.Sprintf("pod %s to start %d times", pod, n), func() error {
			if got := len(m.lines(pod, "start")); got != n {
				return fmt.Errorf("it has started %d times", got)
			}
			return nil
		})
		m.wait("condition=Ready", "pod/"+pod)
	}
}

// lines returns the lines of a pod's file that begin with word, without it.
func (m *machine) lines(pod, word string) (found []string) {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(m.out(), pod))
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), word); ok {
			found = append(found, strings.TrimSpace(rest))
		}
	}
	return found
}

// stoppedInOrder checks how the pods have stopped before the current boot, which is the n-th.
func (m *machine) stoppedInOrder(n int) {
	m.Helper()
	var stops []float64
	for _, pod := range []string{"hook", "critical"} {
		lines := m.lines(pod, "stop")
		if len(lines) != n {
			m.Fatalf("pod %s has stopped gracefully %d times, want %d", pod, len(lines), n)
		}
		var uptime float64
		if _, err := fmt.Sscan(lines[n-1], &uptime); err != nil {
			m.Fatal(err)
		}
		stops = append(stops, uptime)
	}
	if !slices.IsSorted(stops) {
		m.Errorf("the critical pod has stopped before the other: %v", stops)
	}
}

// orderlyShutdown checks that the stop job has stopped the pods before the current boot.
func (m *machine) orderlyShutdown() {
	m.Helper()
	log := m.run("journalctl", "--no-pager", "-b", "-1", "-o", "short-monotonic", "-u", "hyperkube-pods.service")
	m.Log(log)
	for _, bad := range []string{"timed out", "without their preStop hooks"} {
		if strings.Contains(log, bad) {
			m.Errorf("the shutdown was not orderly: %q", bad)
		}
	}
	if !strings.Contains(log, "pods stopped; they run again after the next start") {
		m.Error("the stop job has not stopped the pods")
	}
}
