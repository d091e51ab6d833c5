package hostjournal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/cgroup"
)

// occupiedGroup is the environment variable with the cgroup to remove, for a test program in a
// separate PID namespace.
const occupiedGroup = "HYPERKUBE_TEST_OCCUPIED_GROUP"

// TestHiddenProcesses checks that a cgroup with processes of another PID namespace, which cannot be
// killed from here, does not prevent the other changes from being reverted, and that the error
// describes what to do.
func TestHiddenProcesses(t *testing.T) {
	if name := os.Getenv(occupiedGroup); name != "" {
		revertOccupied(t, name)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for cgroups and namespaces")
	}
	groups, err := cgroup.Open()
	if err != nil {
		t.Skip("needs cgroups:", err)
	}
	if groups.Unified() {
		t.Skip("version 2 kills processes of all namespaces")
	}
	group := fmt.Sprintf("/hyperkube-hidden-test-%d", os.Getpid())
	if err := groups.Create(group+"/in", cgroup.Resources{}); err != nil {
		t.Skip("creating a cgroup:", err)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
		if err := groups.Remove(context.Background(), group); err != nil {
			t.Error(err)
		}
	})
	if err := groups.AddProcess(group+"/in", other.Process.Pid); err != nil {
		t.Fatal(err)
	}
	apart := exec.Command("/proc/self/exe", "-test.run=^TestHiddenProcesses$", "-test.v", "-test.timeout=1m")
	apart.Env = append(os.Environ(), occupiedGroup+"="+group)
	apart.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if out, err := apart.CombinedOutput(); err != nil {
		t.Errorf("apart: %v\n%s", err, out)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other namespace's process: %v", err)
	}
}

// revertOccupied reverts a cgroup that cannot be removed and a directory.
func revertOccupied(t *testing.T, name string) {
	made := filepath.Join(t.TempDir(), "made")
	if err := os.Mkdir(made, 0o700); err != nil {
		t.Fatal(err)
	}
	err := revert(context.Background(), []Change{{Kind: Dir, Name: made}, {Kind: Cgroup, Name: name}}, nil, 50*time.Millisecond)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "cgroup "+name+" has processes of another PID namespace") || !strings.Contains(err.Error(), "then retry") {
		t.Errorf("got error %v", err)
	}
	if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other changes were not reverted: %v", err)
	}
}

// TestHostCgroup checks that processes in a host cgroup are moved out of it and not killed.
func TestHostCgroup(t *testing.T) {
	groups, err := cgroup.Open()
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and cgroups:", err)
	}
	group := fmt.Sprintf("/hyperkube-host-test-%d", os.Getpid())
	if err := groups.Create(group, cgroup.Resources{}); err != nil {
		t.Skip("creating a cgroup:", err)
	}
	held := exec.Command("sleep", "1000")
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = held.Process.Kill()
		_ = held.Wait()
		if err := groups.Remove(context.Background(), group); err != nil {
			t.Error(err)
		}
	})
	if err := groups.AddProcess(group, held.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Revert(context.Background(), []Change{{Kind: HostCgroup, Name: group}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if groups.Exists(group) {
		t.Error("the cgroup still exists")
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", held.Process.Pid))
	if err != nil || strings.Contains(string(state), ") Z ") {
		t.Errorf("the process in the cgroup was killed: %s %v", state, err)
	}
}
