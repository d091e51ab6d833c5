package vm

import (
	"fmt"
	"strings"
	"testing"
)

// limits is a pod with limits, and pods that the kernel kills because of memory: the init process and another one.
const limits = `
apiVersion: v1
kind: Pod
metadata: {name: limits}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "cat /proc/self/attr/current; exec sleep 100000"]
    resources: {limits: {cpu: 250m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: oom}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "exec tail /dev/zero"]
    resources: {limits: {cpu: 500m, memory: 32Mi}}
`

// TestFirstApplication starts a cluster and an application as a user does, checks what limits pods, and compares the machine
// before and after.
func TestFirstApplication(t *testing.T) {
	m := newMachine(t, "bookworm", "trixie", "no-iptables", "firewalld", "arm64")
	before := m.takeState()
	m.up()
	m.kubectl("apply", "-f", "manifests/examples/web.yaml")
	m.apply(limits)
	m.wait("condition=Available", "deployment/web")
	m.eventually("an answer of the application", func() error {
		out, err := m.command("curl", "-sSf", "--max-time", "10", "http://127.0.0.1:30080/")
		if err == nil && !strings.Contains(out, "Hello from pod") {
			err = fmt.Errorf("unexpected answer %q", out)
		}
		return err
	})
	m.wait("condition=Ready", "pod/limits")
	for file, want := range map[string]string{"memory.max": "67108864", "cpu.max": "25000 100000"} {
		if got := m.kubectl("exec", "limits", "--", "cat", "/sys/fs/cgroup/"+file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	if got := m.kubectl("logs", "limits"); got != "hyperkube-default (enforce)" {
		t.Errorf("AppArmor profile is %q", got)
	}
	m.wait("jsonpath={.status.phase}=Failed", "pod/oom")
	if got := m.kubectl("get", "pod", "oom", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.reason}"); got != "OOMKilled" {
		t.Errorf("the pod that needs too much memory has terminated with reason %q", got)
	}
	for _, command := range []string{"daemon-reload", "daemon-reexec"} {
		m.run("systemctl", command)
		m.kubectl("exec", "limits", "--", "true")
	}
	m.run("hyperkube", "reset")
	m.restored(before)
}
