package kubelet

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

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/internal/cgroup"
	"hyperkube/internal/layout"
)

// spawned runs a shell's script as argv0, which writes the number of a process, and
// returns that and the shell.
func spawned(t *testing.T, argv0, script string) (c *exec.Cmd, told int) {
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
	told, err = strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(told); err == nil {
			_ = p.Kill()
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c, told
}

// TestWhoStays: a runtime and what it has started are left where they are.
func TestWhoStays(t *testing.T) {
	const below = "sleep 1000 >/dev/null & echo $!; wait"
	plain, plains := spawned(t, "sh", below)
	other, others := spawned(t, layout.RuntimeName, below)
	for _, c := range []struct {
		what         string
		pid, runtime int
		want         bool
	}{
		{"the first process", 1, 0, true},
		{"one that is gone", 1 << 30, 0, true},
		{"anybody", plain.Process.Pid, 0, false},
		{"anybody's child", plains, 0, false},
		{"the runtime", plain.Process.Pid, plain.Process.Pid, true},
		{"the runtime's child", plains, plain.Process.Pid, true},
		{"a grandchild", plains, os.Getpid(), true},
		{"another node's runtime", other.Process.Pid, 0, true},
		{"another node's runtime's child", others, 0, true},
	} {
		if got := stays(c.pid, c.runtime); got != c.want {
			t.Errorf("%s: stays %t", c.what, got)
		}
	}
}

// TestGatherSystem: what the configuration's cgroup gets, and that it is made.
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
	k := &Kubelet{cfg: Config{Endpoint: "unix://" + socket, Cgroups: CgroupConfig{Off: true, System: root + "/system"}}}
	if err := k.enterOwn(); err != nil {
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
	// The shell, which the test is the runtime for, leaves a process to the machine.
	child, kept := spawned(t, "sh", "sleep 1000 >/dev/null & echo $!; wait")
	parents, orphan := spawned(t, "sh", "sh -c 'sleep 1000 >/dev/null & echo $!'; true")
	if err := parents.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{child.Process.Pid, kept, orphan} {
		if err := groups.Enter(root+"/root", pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.gatherOnce(groups, root+"/root"); err != nil {
		t.Fatal(err)
	}
	if got, err := groups.Pids(root + "/system"); err != nil || !slices.Equal(got, []int{orphan}) {
		t.Errorf("gathered %v, %v; want %d", got, err, orphan)
	}
	if got, err := groups.Pids(root + "/root"); err != nil || len(got) != 2 {
		t.Errorf("left %v, %v; want %d and %d", got, err, child.Process.Pid, kept)
	}
}

// TestSystemCgroupsRefused in upstream's words.
func TestSystemCgroupsRefused(t *testing.T) {
	for root, c := range map[string]struct{ name, want string }{
		"":  {"/system", "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"},
		"/": {"/", `system container cannot be root ("/")`},
	} {
		cfg := Config{NodeName: "n"}
		if err := cfg.Apply(&kubeletv1beta1.KubeletConfiguration{SystemCgroups: c.name, CgroupRoot: root}); err != nil {
			t.Fatal(err)
		}
		if err := cfg.complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s below %q: %v", c.name, root, err)
		}
	}
}
