package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDiskFull fills the disk of a cluster that runs in the background until etcd stops, and checks that `status` reports
// the reason, that the pods go on, and that the cluster comes back, in the same process, once there is space.
func TestDiskFull(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	data := filepath.Join(root, "var", "lib", "hyperkube")
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	a.sh("mount -t tmpfs -o size=1g disk " + data)
	t.Cleanup(func() {
		if out, err := a.command(a.binary, "down", "--root", root).CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	a.hyperkube("up", "--root", root)
	a.apply(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
`)
	a.hyperkube("kubectl", "wait", "--for=condition=Ready", "--timeout=120s", "pod/web")
	const facts = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
	before := a.hyperkube("kubectl", "get", "pod", "web", "-o", facts)
	pid := a.sh("cat " + root + "/run/hyperkube/hyperkube.pid")

	// Etcd has space in files that it has allocated, so it takes some writes to use that up.
	filler := filepath.Join(data, "filler")
	a.sh("dd if=/dev/zero of=" + filler + " bs=1M 2>/dev/null || true")
	value := strings.Repeat("0123456789abcdef", 60<<10/16)
	file := filepath.Join(a.dir, "configmap.yaml")
	status := func() string {
		out, err := a.command(a.binary, "status", "--root", root).CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("status: %v", err)
		}
		return string(out)
	}
	stopped := ""
	for n := 0; n < 400 && !strings.Contains(stopped, "waiting for free disk space"); n++ {
		var list strings.Builder
		for i := range 10 {
			fmt.Fprintf(&list, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: fill-%d-%d}\ndata: {v: %q}\n", n, i, value)
		}
		if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = a.command(a.binary, "kubectl", "create", "--request-timeout=10s", "-f", file).Run() // fails in the end
		if stopped = status(); strings.Contains(stopped, "hyperkube is not running") {
			break
		}
	}
	if !strings.Contains(stopped, "waiting for free disk space") || !strings.Contains(stopped, "no space left on device") && !strings.Contains(stopped, "MiB of free disk space") {
		t.Fatalf("with a full disk status reports\n%s", stopped)
	}
	if now := a.sh("cat " + root + "/run/hyperkube/hyperkube.pid"); now != pid {
		t.Errorf("the main process was %s and is %s", pid, now)
	}

	if err := os.Remove(filepath.Join("/proc", fmt.Sprint(a.holder), "root", filler)); err != nil {
		t.Fatal(err)
	}
	a.eventually(2*time.Minute, func() error {
		out, err := a.command(a.binary, "kubectl", "get", "--raw", "/readyz").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	a.eventually(time.Minute, func() error {
		if out := status(); !strings.Contains(out, "running") || strings.Contains(out, "problem") {
			return fmt.Errorf("with space again status reports\n%s", out)
		}
		return nil
	})
	if after := a.hyperkube("kubectl", "get", "pod", "web", "-o", facts); after != before {
		t.Errorf("the pod's container was %s and is %s", before, after)
	}
}
