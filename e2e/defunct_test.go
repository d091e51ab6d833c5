package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDefunctProcesses takes clusters away on a machine whose process 1 does not reap. The parent of a cluster in the
// foreground reaps it, and nothing stays defunct. The main process of a cluster in the background has no other parent than
// process 1, so that it alone stays.
func TestDefunctProcesses(t *testing.T) {
	a := newAlone(t)
	power := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", "ip link set lo up && echo here && exec sleep infinity")
	out, err := power.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := power.Start(); err != nil {
		t.Fatal(err)
	}
	a.holder, a.pids = power.Process.Pid, true
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() {
		a.ctx = context.Background()
		_ = a.command(a.binary, "reset", "--root", root).Run()
		_ = power.Process.Kill()
		_ = power.Wait()
	})
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	defunct := func() []string {
		t.Helper()
		// Only process 1 and what is in its namespace is listed.
		var out []string
		for line := range strings.Lines(a.sh("cat /proc/[0-9]*/stat 2>/dev/null || true")) {
			if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "Z" {
				out = append(out, strings.Trim(fields[1], "()"))
			}
		}
		return out
	}

	kubectl := func(args ...string) *exec.Cmd {
		return a.command(a.binary, append([]string{"kubectl", "--kubeconfig", filepath.Join(root, "var/lib/hyperkube/admin.conf")}, args...)...)
	}
	for _, c := range []struct {
		name string
		// ready reports whether the cluster is to be stopped.
		ready func() error
	}{
		{"while the second node's runtime starts", func() error {
			_, err := os.Stat(filepath.Join(root, "run/hyperkube/nodes/1/runtime.pid"))
			return err
		}},
		{"with two ready nodes", func() error {
			out, err := kubectl("get", "nodes", "--no-headers").Output()
			if n := strings.Count(string(out), " Ready "); n != 2 {
				return fmt.Errorf("%d nodes are ready (%w)", n, err)
			}
			return nil
		}},
	} {
		up := a.command(a.binary, "up", "--foreground", "--nodes=2", "--root", root)
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- up.Wait() }()
		a.eventually(3*time.Minute, c.ready)
		a.hyperkube("down", "--root", root)
		if err := <-ended; err != nil && c.name == "with two ready nodes" {
			t.Errorf("up in the foreground: %v", err)
		}
		if left := defunct(); len(left) > 0 {
			t.Fatalf("down %s: these processes are defunct: %v", c.name, left)
		}
	}

	a.hyperkube("up", "--root", root)
	a.hyperkube("down", "--root", root)
	if left := defunct(); len(left) > 1 || len(left) == 1 && left[0] != filepath.Base(a.binary) {
		t.Errorf("after a cluster in the background these processes are defunct: %v", left)
	}
}
