package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestMove checks that Move moves selected processes only, and none of cgroups below, with both
// cgroup versions.
func TestMove(t *testing.T) {
	m, err := Open()
	if err != nil || os.Getuid() != 0 {
		t.Skipf("needs cgroups and root: %v", err)
	}
	root := fmt.Sprintf("/hk-test-move-%d", os.Getpid())
	for _, name := range []string{"/from/below", "/to"} {
		if err := m.Create(root+name, Resources{}); err != nil {
			t.Skip("creating a cgroup:", err)
		}
	}
	t.Cleanup(func() {
		if err := m.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	var pids []int
	// In version 2, a cgroup that delegates controllers cannot contain processes.
	below := root + "/from/below"
	if m.Unified() {
		below = root + "/to"
	}
	for _, in := range []string{root + "/from", root + "/from", below} {
		p := exec.Command("sleep", "1000")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = p.Process.Kill()
			_ = p.Wait()
		})
		if err := m.AddProcess(in, p.Process.Pid); err != nil {
			if m.Unified() {
				t.Skip("a cgroup that delegates controllers cannot contain processes:", err)
			}
			t.Fatal(err)
		}
		pids = append(pids, p.Process.Pid)
	}
	moved, err := m.Move(root+"/from", root+"/to", func(pid int) bool { return pid != pids[1] })
	if err != nil || moved != len(m.Dirs("/")) {
		t.Errorf("moved %d, %v; there are %d hierarchies", moved, err, len(m.Dirs("/")))
	}
	for name, want := range map[string][]int{root + "/to": pids[:1], root + "/from": pids[1:]} {
		if m.Unified() {
			continue
		}
		if got, err := m.Pids(name); err != nil || !slices.Equal(got, want) {
			t.Errorf("in %s are %v, %v; want %v", name, got, err, want)
		}
	}
	if moved, err := m.Move(root+"/from", root+"/to", func(pid int) bool { return pid != pids[1] }); err != nil || moved != 0 {
		t.Errorf("second call: moved %d, %v", moved, err)
	}
}

// TestMoveUnified checks that Move writes to cgroup.procs of the target cgroup in version 2.
func TestMoveUnified(t *testing.T) {
	m, root := fakeV2(t)
	put(t, root, "cgroup.procs", "0\n7\n9\n")
	put(t, filepath.Join(root, "to"), "cgroup.procs", "")
	if moved, err := m.Move("/", "/to", func(pid int) bool { return pid != 9 }); err != nil || moved != 1 {
		t.Errorf("moved %d, %v", moved, err)
	}
	if got := get(t, filepath.Join(root, "to"), "cgroup.procs"); got != "7" {
		t.Errorf("%q was written", got)
	}
	if _, err := m.Move("/", "/none", func(int) bool { return true }); err == nil {
		t.Error("moving to a missing cgroup succeeded")
	}
}
