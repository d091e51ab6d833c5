package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
)

// machine is one of two machines that are connected to each other only.
type machine struct {
	*alone
	root string
}

// newMachines creates two machines with a link between them.
func newMachines(t *testing.T) (controlPlane, worker *machine) {
	t.Helper()
	controlPlane, worker = &machine{alone: newAlone(t)}, &machine{alone: newAlone(t)}
	for i, m := range []*machine{controlPlane, worker} {
		m.root = filepath.Join(m.dir, "r")
		if i == 1 {
			m.sh(fmt.Sprintf("ip link add eth0 type veth peer name eth0 netns /proc/%d/ns/net", controlPlane.holder))
		}
	}
	for i, m := range []*machine{controlPlane, worker} {
		m.sh(fmt.Sprintf("ip addr add 198.18.9.%d/24 dev eth0 && ip link set eth0 up && ip route add default via 198.18.9.254", i+1))
		t.Cleanup(func() { _ = m.command(m.binary, "reset", "--root", m.root).Run() })
	}
	return controlPlane, worker
}

// starts returns when each control plane container started, by component.
func (m *machine) starts() (map[string]string, error) {
	out, err := m.command(m.binary, "kubectl", "-n", "kube-system", "get", "pods", "-l", "tier=control-plane", "-o", "json").Output()
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := json.Unmarshal(out, &pods); err != nil {
		return nil, err
	}
	starts := map[string]string{}
	for _, p := range pods.Items {
		if len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil || !p.Status.ContainerStatuses[0].Ready {
			return nil, fmt.Errorf("%s is not ready: %s", p.Name, p.Status.Phase)
		}
		c := p.Status.ContainerStatuses[0]
		starts[p.Labels["component"]] = c.ContainerID + " " + fmt.Sprint(c.RestartCount)
	}
	if len(starts) != 4 {
		return nil, fmt.Errorf("%d of 4 components", len(starts))
	}
	return starts, nil
}

// TestInitJoin creates a control plane from static pods, joins a worker, changes one component,
// kills the node's processes, and resets both machines.
func TestInitJoin(t *testing.T) {
	t.Parallel()
	m, w := newMachines(t)
	said := m.hyperkube("init", "--root", m.root, "--node-name", "cp")
	join := regexp.MustCompile(`hyperkube (join .*)`).FindStringSubmatch(said)
	if join == nil {
		t.Fatalf("init does not print the join command:\n%s", said)
	}
	etc := layout.Under(m.root).Etc
	for _, file := range []string{
		"pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/etcd/server.crt", "pki/front-proxy-client.crt", "admin.conf", "super-admin.conf",
		"kubelet.conf", "controller-manager.conf", "scheduler.conf", "manifests/etcd.yaml", "manifests/kube-apiserver.yaml",
	} {
		info, err := os.Stat(filepath.Join(etc, file))
		if err != nil {
			t.Error(err)
		} else if !strings.HasSuffix(file, ".crt") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
	}

	bad := strings.Fields(strings.Replace(join[1], "sha256:", "sha256:0", 1))
	if out, err := w.command(w.binary, append(bad, "--root", w.root)...).CombinedOutput(); err == nil {
		t.Errorf("joined with a wrong CA hash:\n%s", out)
	}
	w.hyperkube(append(strings.Fields(join[1]), "--root", w.root, "--node-name", "worker")...)
	m.kubectl("wait", "--for=condition=Ready", "node/cp", "node/worker", "--timeout=180s")
	if out := m.kubectl("get", "nodes"); !regexp.MustCompile(`cp +Ready +control-plane`).MatchString(out) {
		t.Errorf("nodes:\n%s", out)
	}
	if out := m.kubectl("get", "csr"); !strings.Contains(out, "Approved,Issued") {
		t.Errorf("certificate requests:\n%s", out)
	}

	// The pod runs on the worker, because the control plane node is tainted.
	m.kubectl("run", "web", "--image="+version.Image(), "--command", "--", "/hyperkube", "hello")
	m.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=180s")
	if out := m.kubectl("get", "pod", "web", "-o", "jsonpath={.spec.nodeName}"); out != "worker" {
		t.Errorf("the pod is on %q", out)
	}
	if out := m.kubectl("exec", "web", "--", "/hyperkube", "version"); !strings.Contains(out, version.Get().GitVersion) {
		t.Errorf("exec in the pod printed %q", out)
	}

	for _, x := range []*machine{m, w} {
		if out := x.hyperkube("status", "--root", x.root); !strings.Contains(out, "worker Ready") {
			t.Errorf("status printed\n%s", out)
		}
	}

	t.Run("tokens", func(t *testing.T) { m.tokens(t) })
	m.initAddons()

	// A change of a manifest restarts only its component.
	var before map[string]string
	m.eventually(30*time.Second, func() (err error) { before, err = m.starts(); return err })
	path := filepath.Join(etc, "manifests", "kube-scheduler.yaml")
	manifest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(manifest), "--leader-elect=true", "--leader-elect=false", 1)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	var after map[string]string
	m.eventually(30*time.Second, func() (err error) {
		if after, err = m.starts(); err == nil && after["kube-scheduler"] == before["kube-scheduler"] {
			return errors.New("the scheduler was not restarted after a change of its manifest")
		}
		return err
	})
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if before[name] != after[name] {
			t.Errorf("%s was %s, is %s", name, before[name], after[name])
		}
	}

	// After killing the node's process and the runtime, the control plane keeps running, and init
	// restarts them.
	for _, name := range []string{"hyperkube", "runtime"} {
		m.kill(layout.Under(m.root).PIDFile(name))
	}
	m.kubectl("get", "--raw", "/readyz")
	m.hyperkube("init", "--root", m.root, "--node-name", "cp")
	// init restores the original manifest of the scheduler.
	m.eventually(30*time.Second, func() error {
		now, err := m.starts()
		if err != nil {
			return err
		}
		for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
			if before[name] != now[name] {
				t.Errorf("%s was %s, is %s", name, before[name], now[name])
			}
		}
		return nil
	})

	w.hyperkube("stop", "--root", w.root)
	w.hyperkube("join", "--root", w.root)

	for _, x := range []*machine{w, m} {
		x.hyperkube("reset", "--root", x.root)
		if left, err := os.ReadDir(x.root); err == nil && len(left) > 0 {
			out, _ := exec.Command("find", x.root).Output()
			t.Errorf("files after reset:\n%s", out)
		}
	}
}

// tokens creates, lists and deletes tokens.
func (m *machine) tokens(t *testing.T) {
	made := strings.TrimSpace(m.hyperkube("token", "create", "--ttl=1h", "--description=for a test"))
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(made) {
		t.Errorf("made %q", made)
	}
	if out := m.hyperkube("token", "list"); !regexp.MustCompile(regexp.QuoteMeta(made) + ` +(59m|60m|1h) .*authentication,signing +for a test +system:bootstrappers:kubeadm:default-node-token`).MatchString(out) {
		t.Errorf("tokens:\n%s", out)
	}
	id, _, _ := strings.Cut(made, ".")
	m.hyperkube("token", "delete", id)
	if out := m.hyperkube("token", "list"); strings.Contains(out, made) {
		t.Errorf("deleted token still exists:\n%s", out)
	}
}

// kill kills the process of a PID file with SIGKILL.
func (m *machine) kill(file string) {
	m.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		m.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	m.eventually(10*time.Second, func() error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d does not exit", pid)
		}
		return nil
	})
}
