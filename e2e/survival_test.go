package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mainPID returns the PID of the process that `up` started.
func mainPID(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/run/hyperkube/hyperkube.pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestKill kills the main process while pods serve. No request to the Service's name may fail,
// containers keep running, and the status of changes in the meantime is updated soon after the
// restart.
func TestKill(t *testing.T) {
	s := newSpace(t)
	s.client()
	s.apply(web(2))
	s.rollout("web")
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: prober}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: hyperkube
    imagePullPolicy: IfNotPresent
    args: [hello, get, --every=20ms, "http://web/"]
`)
	dir := t.TempDir()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "echo before; until test -e /host/go; do sleep 0.1; done; echo after; touch /host/ends; exit 42"]
    volumeMounts: [{name: host, mountPath: /host}]
  volumes: [{name: host, hostPath: {path: ` + dir + `}}]
`)
	s.do("wait", "--for=condition=Ready", "pod/prober", "pod/ends", "--timeout=180s")
	s.eventually(20*time.Second, func() error {
		if out := s.do("logs", "prober"); !strings.Contains(out, "good") {
			return fmt.Errorf("log %q", out)
		}
		return nil
	})
	before := s.containers()

	if err := syscall.Kill(mainPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// The pod "ends" terminates meanwhile.
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.eventually(10*time.Second, func() error {
		_, err := os.Stat(filepath.Join(dir, "ends"))
		return err
	})
	if err := shared.up(); err != nil {
		t.Fatal(err)
	}
	s.eventually(30*time.Second, func() error {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "ends", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.ContainerStatuses) == 1 {
			if ended := p.Status.ContainerStatuses[0].State.Terminated; ended != nil {
				if ended.ExitCode != 42 {
					t.Fatalf("exit code %d", ended.ExitCode)
				}
				return nil
			}
		}
		return fmt.Errorf("status %+v", p.Status.ContainerStatuses)
	})
	s.contains(s.do("logs", "ends"), "before", "after")
	if log := s.do("logs", "prober"); strings.Contains(log, "bad") {
		t.Errorf("%d of %d requests failed", strings.Count(log, "bad"), strings.Count(log, "\n"))
	}
	for name, was := range before {
		if is := s.containers()[name]; name != "ends" && is != was {
			t.Errorf("%s was %s and is %s", name, was, is)
		}
	}
	// The cluster still works.
	s.do("scale", "deployment/web", "--replicas=3")
	s.rollout("web")
}

// containers returns the container ID, start time and restart count of each pod.
func (s *space) containers() map[string]string {
	s.Helper()
	pods, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			started := "not running"
			if c.State.Running != nil {
				started = c.State.Running.StartedAt.UTC().String()
			}
			out[p.Name] = fmt.Sprintf("%s, %d restarts, %s", started, c.RestartCount, c.ContainerID)
		}
	}
	return out
}

// TestUpAgain: up succeeds if the cluster is already running.
func TestUpAgain(t *testing.T) {
	newSpace(t)
	out, err := exec.Command(shared.binary, "up").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "running") {
		t.Errorf("%s, %v", out, err)
	}
	out, err = exec.Command(shared.binary, "status").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Ready") {
		t.Errorf("status: %s, %v", out, err)
	}
}

// TestStopUp stops the control plane gracefully. Pods keep running.
func TestStopUp(t *testing.T) {
	s := newSpace(t)
	s.client()
	before := s.containers()
	if out, err := exec.Command(s.binary, "stop").CombinedOutput(); err != nil {
		t.Fatalf("stop: %v: %s", err, out)
	}
	if out, err := exec.Command(s.binary, "stop").CombinedOutput(); err != nil {
		t.Fatalf("repeated stop: %v: %s", err, out)
	}
	if err := shared.up(); err != nil {
		t.Fatal(err)
	}
	s.eventually(20*time.Second, func() error {
		if after := s.containers(); after["client"] != before["client"] {
			return fmt.Errorf("was %s and is %s", before["client"], after["client"])
		}
		return nil
	})
}

// TestDownUp stops everything and starts the cluster with its data on disk, like after a reboot.
// The pods are restarted.
func TestDownUp(t *testing.T) {
	s := newSpace(t)
	s.apply(web(2))
	s.rollout("web")
	if out, err := exec.Command(s.binary, "down").CombinedOutput(); err != nil {
		t.Fatalf("down: %v: %s", err, out)
	}
	if out, err := exec.Command("ip", "-o", "link").CombinedOutput(); err != nil || strings.Contains(string(out), "hk-") {
		t.Errorf("links: %s, %v", out, err)
	}
	if err := shared.up(); err != nil {
		t.Fatal(err)
	}
	s.eventually(time.Minute, func() error {
		if got := s.do("get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"); got != "2" {
			return fmt.Errorf("%q ready", got)
		}
		return nil
	})
	s.contains(s.get(s.nodePort()), "Hello from pod web-")
}
