package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/host/layout"
)

// fromEnv is the environment variable with the path of an earlier build, from which the tests in this
// file upgrade. `make upgrade-test` sets it.
const fromEnv = "HYPERKUBE_E2E_FROM"

// earlierBuild returns the path of the earlier build.
func earlierBuild(t *testing.T) string {
	t.Helper()
	path := os.Getenv(fromEnv)
	if path == "" {
		t.Skip("needs an earlier build: make upgrade-test FROM=COMMIT")
	}
	return path
}

// workload is what TestUpgradeFrom* observe of a cluster before and after an upgrade.
type workload struct {
	pods, secret, service string
}

// deploy creates a Deployment with a replica on each of n nodes, a Service and a Secret, and returns their state.
func (a *alone) deploy(n int) workload {
	a.t.Helper()
	a.kubectl("create", "deployment", "web", "--image=hyperkube", fmt.Sprintf("--replicas=%d", n), "--port=8080", "--", "/hyperkube", "hello")
	a.kubectl("patch", "deployment", "web", "-p", `{"spec":{"template":{"spec":{"topologySpreadConstraints":[{"maxSkew":1,
		"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"web"}}}]}}}}`)
	a.kubectl("rollout", "status", "deployment/web", "--timeout=180s")
	a.kubectl("expose", "deployment", "web")
	a.kubectl("create", "secret", "generic", "kept", "--from-literal=key=value")
	// Pods of the first revision of the Deployment may still be terminating. kubectl wait fails if one is deleted.
	a.eventually(time.Minute, func() error {
		if got := len(strings.Fields(a.kubectl("get", "pods", "-l", "app=web", "-o", "name"))); got != n {
			return fmt.Errorf("%d pods", got)
		}
		return nil
	})
	a.kubectl("wait", "pods", "-l", "app=web", "--for=condition=Ready", "--timeout=60s")
	return a.workload()
}

// workload returns the state of what deploy created.
func (a *alone) workload() workload {
	a.t.Helper()
	return workload{
		pods: a.kubectl("get", "pods", "-l", "app=web", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.podIP} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}`),
		secret:  a.kubectl("get", "secret", "kept", "-o", "jsonpath={.data}"),
		service: a.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"),
	}
}

// works checks that pods, containers and services of the upgraded cluster can be used.
func (a *alone) works(n int) {
	a.t.Helper()
	for pod := range strings.Lines(a.kubectl("get", "pods", "-l", "app=web", "-o", "name")) {
		pod = strings.TrimSpace(pod)
		if out := a.kubectl("exec", pod, "--", "/hyperkube", "version"); !strings.Contains(out, "hyperkube") {
			a.t.Errorf("exec in %s printed %q", pod, out)
		}
		a.kubectl("logs", pod)
	}
	a.kubectl("scale", "deployment/web", fmt.Sprintf("--replicas=%d", n+1))
	a.kubectl("rollout", "status", "deployment/web", "--timeout=180s")
	a.kubectl("delete", "deployment,service", "web", "--wait")
}

// remains returns what a cluster changes on the machine: its network, mounts, cgroups, processes and
// runtime directory.
func (a *alone) remains(root string) host {
	a.t.Helper()
	h := host{}
	for line := range strings.SplitSeq(a.network(), "\n") {
		// Link-local addresses of the machine's own links appear a moment after the links.
		if !strings.Contains(line, "local fe80::") {
			h["network"] = append(h["network"], line)
		}
	}
	for line := range strings.Lines(a.sh("cat /proc/self/mountinfo")) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], root) {
			h["mounts"] = append(h["mounts"], fields[4])
		}
	}
	l := layout.Under(root)
	err := filepath.WalkDir(cgroupRoot, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasSuffix(path, l.CgroupRoot) {
			h["cgroups"] = append(h["cgroups"], path)
		}
		return nil
	})
	if err != nil {
		a.t.Fatal(err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		a.t.Fatal(err)
	}
	for _, path := range lines {
		if data, _ := os.ReadFile(path); strings.Contains(string(data), root) {
			h["processes"] = append(h["processes"], strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	if _, err := os.Stat(l.Run); err == nil {
		h["directories"] = append(h["directories"], l.Run)
	}
	for _, lines := range h {
		slices.Sort(lines)
	}
	return h
}

// TestUpgradeFromUp upgrades a cluster of two nodes, which an earlier build created with `up`, while
// pods run, and stops it. Nothing remains.
func TestUpgradeFromUp(t *testing.T) {
	earlier := earlierBuild(t)
	a := newAlone(t)
	newer, version := a.anotherBuild()
	a.binary = earlier
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() { _ = a.command(newer, "reset", "--root", root).Run() })
	a.sh("iptables -L -n >/dev/null; ip6tables -L -n >/dev/null") // creates the tables
	before := a.remains(root)
	a.hyperkube("up", "--nodes=2", "--root", root)
	deployed := a.deploy(2)
	runtime := a.runtime(root)

	a.binary = newer
	if out := a.hyperkube("up", "--nodes=2", "--root", root); !strings.Contains(out, "of another build with this build, "+version) {
		t.Errorf("up of the newer build printed\n%s", out)
	}
	a.kubectl("wait", "nodes", "--all", "--timeout=180s", "--for=jsonpath={.status.nodeInfo.kubeletVersion}="+version)
	a.kubectl("wait", "nodes", "--all", "--timeout=180s", "--for=condition=Ready")
	if now := a.workload(); now != deployed {
		t.Errorf("before the upgrade:\n%+v\nafter:\n%+v", deployed, now)
	}
	if now := a.runtime(root); now != runtime {
		t.Errorf("the runtime was process %d and is %d", runtime, now)
	}
	a.works(2)
	a.hyperkube("down", "--root", root)
	if diff := before.diff(a.remains(root)); diff != "" {
		t.Errorf("after down:\n%s", diff)
	}
	a.hyperkube("reset", "--root", root)
	if left, err := os.ReadDir(root); err == nil && len(left) > 0 {
		t.Errorf("files after reset: %v", left)
	}
}

// TestUpgradeFromControlPlane upgrades three control plane nodes, which an earlier build created with
// `init` and `join`, while pods run, and stops them. Nothing remains.
func TestUpgradeFromControlPlane(t *testing.T) {
	earlier := earlierBuild(t)
	s := newSite(t)
	first := s.machines[0]
	newer, version := first.anotherBuild()
	var before []host
	for _, m := range s.machines {
		m.binary = earlier
		m.sh("iptables -L -n >/dev/null; ip6tables -L -n >/dev/null") // creates the tables
		before = append(before, m.remains(m.root))
	}
	said := first.hyperkube("init", "--root", first.root, "--node-name", "m0", "--control-plane-endpoint", endpoint, "--upload-certs")
	join := regexp.MustCompile(`hyperkube (join .*--control-plane .*)`).FindStringSubmatch(said)
	if join == nil {
		t.Fatalf("init does not print the control plane join command:\n%s", said)
	}
	s.others(func(i int, m *machine) {
		m.hyperkube(append(strings.Fields(join[1]), "--root", m.root, "--node-name", fmt.Sprintf("m%d", i))...)
	})
	first.kubectl("taint", "nodes", "--all", "node-role.kubernetes.io/control-plane-")
	deployed := first.deploy(3)

	for i, m := range s.machines {
		m.binary = newer
		if i == 0 {
			m.hyperkube("upgrade", "apply", "--root", m.root, "--yes")
		} else {
			m.hyperkube("upgrade", "node", "--root", m.root)
		}
	}
	first.kubectl("wait", "nodes", "--all", "--timeout=180s", "--for=jsonpath={.status.nodeInfo.kubeletVersion}="+version)
	first.kubectl("wait", "nodes", "--all", "--timeout=180s", "--for=condition=Ready")
	first.eventually(time.Minute, func() error { return s.served(first, "198.18.7.1", "198.18.7.2", "198.18.8.3") })
	for i, m := range s.machines {
		if out := m.sh(fmt.Sprintf("curl -sk https://%s:6443/version", []string{"198.18.7.1", "198.18.7.2", "198.18.8.3"}[i])); !strings.Contains(out, version) {
			t.Errorf("the API server of machine %d reports %s", i, out)
		}
	}
	if now := first.workload(); now != deployed {
		t.Errorf("before the upgrade:\n%+v\nafter:\n%+v", deployed, now)
	}
	first.works(3)
	for i, m := range slices.Backward(s.machines) {
		m.hyperkube("down", "--root", m.root)
		if diff := before[i].diff(m.remains(m.root)); diff != "" {
			t.Errorf("after down of machine %d:\n%s", i, diff)
		}
	}
}
