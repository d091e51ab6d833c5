package hostcgroups

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/layout"
)

// spawn runs a shell script as argv0. The script prints a process ID. spawn returns the shell and that ID; both
// processes are killed when the test ends.
func spawn(t *testing.T, argv0, script string) (c *exec.Cmd, pid int) {
	t.Helper()
	c = &exec.Cmd{Path: "/bin/sh", Args: []string{argv0, "-c", script}}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c, pid
}

// TestRemainingPods checks that a runtime and its descendants are not moved.
func TestRemainingPods(t *testing.T) {
	const below = "sleep 1000 >/dev/null & echo $!; wait"
	plain, plains := spawn(t, "sh", below)
	other, others := spawn(t, layout.RuntimeName, below)
	for _, c := range []struct {
		what         string
		pid, runtime int
		want         bool
	}{
		{"init process", 1, 0, true},
		{"exited process", 1 << 30, 0, true},
		{"anybody", plain.Process.Pid, 0, false},
		{"child of another process", plains, 0, false},
		{"the runtime", plain.Process.Pid, plain.Process.Pid, true},
		{"the runtime's child", plains, plain.Process.Pid, true},
		{"a grandchild", plains, os.Getpid(), true},
		{"another node's runtime", other.Process.Pid, 0, true},
		{"another node's runtime's child", others, 0, true},
	} {
		if got := mustNotMove(c.pid, c.runtime); got != c.want {
			t.Errorf("%s: kept %t", c.what, got)
		}
	}
}

// TestGatherSystem checks that the configured cgroup is created and which processes are moved into
// it.
func TestGatherSystem(t *testing.T) {
	groups, err := cgroup.Open()
	if err != nil || os.Getuid() != 0 || groups.Unified() {
		t.Skipf("needs cgroups of version 1 and root: %v", err)
	}
	root := fmt.Sprintf("/hk-test-system-%d", os.Getpid())
	socket := filepath.Join(t.TempDir(), "rt.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := New(Config{RuntimeEndpoint: "unix://" + socket, System: root + "/system"})
	if err := h.enterCgroup(); err != nil {
		t.Fatal(err)
	}
	if err := groups.Create(root+"/root", cgroup.Resources{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	// The test is the runtime. The orphan's parent shell exits, so that init adopts it.
	child, kept := spawn(t, "sh", "sleep 1000 >/dev/null & echo $!; wait")
	parents, orphan := spawn(t, "sh", "sh -c 'sleep 1000 >/dev/null & echo $!'; true")
	if err := parents.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{child.Process.Pid, kept, orphan} {
		if err := groups.AddProcess(root+"/root", pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.moveOnce(groups, root+"/root"); err != nil {
		t.Fatal(err)
	}
	if got, err := groups.Pids(root + "/system"); err != nil || !slices.Equal(got, []int{orphan}) {
		t.Errorf("moved %v, %v; want %d", got, err, orphan)
	}
	if got, err := groups.Pids(root + "/root"); err != nil || len(got) != 2 {
		t.Errorf("left %v, %v; want %d and %d", got, err, child.Process.Pid, kept)
	}
}
