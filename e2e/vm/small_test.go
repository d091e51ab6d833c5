package vm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// smallPods is a Deployment of pods that each need about a megabyte, without the number of replicas.
const smallPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: small}
spec:
  replicas: %d
  selector: {matchLabels: {app: small}}
  template:
    metadata: {labels: {app: small}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: ` + busybox + `
        command: [sh, -c, "exec httpd -f -p 8080"]
        readinessProbe: {tcpSocket: {port: 8080}}
`

// TestSmallMachine runs `up` and pods on a machine with little memory: 3 pods with 512 MB, 30 pods with 1 GB. No process is
// killed, no pod is evicted, and no container restarts. It prints the memory that the machine and hyperkube use. Run it with
//
//	VM_MEMORY=512M make e2e-vm RUN=TestSmallMachine
func TestSmallMachine(t *testing.T) {
	m := newMachine(t)
	total := m.meminfo("MemTotal")
	replicas := 3
	switch {
	case total > 1<<20:
		t.Skipf("needs a machine with at most 1 GB of memory (VM_MEMORY=512M or 1G), this one has %d MB", total>>10)
	case total > 700<<10:
		replicas = 30
	}
	before, kills := m.meminfo("MemAvailable"), m.oomKills()
	m.up()
	afterUp := m.meminfo("MemAvailable")
	m.apply(fmt.Sprintf(smallPods, replicas))
	m.wait("condition=Available", "deployment/small")
	m.kubectl("rollout", "status", "deployment/small")
	t.Logf("memory in MB: %d in total, %d available before up, %d after up, %d with %d pods; hyperkube uses %d (PSS)",
		total>>10, before>>10, afterUp>>10, m.meminfo("MemAvailable")>>10, replicas, m.proportionalSetSize("hyperkube")>>10)
	if now := m.oomKills(); now != kills {
		t.Errorf("the kernel has killed %d processes because of memory", now-kills)
	}
	for _, condition := range []string{"MemoryPressure", "DiskPressure", "PIDPressure"} {
		if got := m.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.conditions[?(@.type=='"+condition+"')].status}"); got != "False" {
			t.Errorf("condition %s of the node is %s, want False", condition, got)
		}
	}
	if got := m.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"); strings.Trim(got, "0 ") != "" {
		t.Errorf("containers have restarted: %s", got)
	}
	if got := m.kubectl("get", "pods", "-A", "--field-selector", "status.phase!=Running", "-o", "name"); got != "" {
		t.Errorf("pods that do not run: %s", got)
	}
	m.run("hyperkube", "reset")
}

// meminfo returns a value of /proc/meminfo in KiB.
func (m *machine) meminfo(name string) int64 {
	m.Helper()
	return m.number("/proc/meminfo", name+":")
}

// oomKills returns how many processes the kernel has killed because of memory since it booted.
func (m *machine) oomKills() int64 {
	m.Helper()
	return m.number("/proc/vmstat", "oom_kill")
}

// number returns the first number of the line of a file that begins with the word name.
func (m *machine) number(file, name string) int64 {
	m.Helper()
	n, err := number(file, name)
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// number returns the first number of the line of a file that begins with the word name.
func number(file, name string) (n int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			return strconv.ParseInt(words[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %s", file, name)
}

// proportionalSetSize returns the memory in KiB of all processes whose name begins with prefix. Shared pages are divided among
// the processes that map them.
func (m *machine) proportionalSetSize(prefix string) int64 {
	m.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		m.Fatal(err)
	}
	var sum int64
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), prefix) {
			continue // another process, or it has exited
		}
		if size, err := number(filepath.Join(filepath.Dir(name), "smaps_rollup"), "Pss:"); err == nil {
			sum += size
		}
	}
	if sum == 0 {
		m.Errorf("no process has the name %s", prefix)
	}
	return sum
}
