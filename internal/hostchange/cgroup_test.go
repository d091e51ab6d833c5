package hostchange

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

	"hyperkube/internal/cgroup"
)

// occupiedGroup names, for a test program in a PID namespace of its own, the cgroup to be
// removed.
const occupiedGroup = "HYPERKUBE_TEST_OCCUPIED_GROUP"

// TestHiddenProcesses: a cgroup that has processes of another PID namespace, which nobody
// here can end, does not keep the rest from being taken back, and the error says what to do.
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
		t.Skip("version 2 ends processes of every namespace")
	}
	group := fmt.Sprintf("/hyperkube-hidden-test-%d", os.Getpid())
	if err := groups.Create(group+"/in", cgroup.Resources{}); err != nil {
		t.Skip("making a cgroup:", err)
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
	if err := groups.Enter(group+"/in", other.Process.Pid); err != nil {
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

// revertOccupied takes back a cgroup that cannot be removed, and a folder.
func revertOccupied(t *testing.T, name string) {
	made := filepath.Join(t.TempDir(), "made")
	if err := os.Mkdir(made, 0o700); err != nil {
		t.Fatal(err)
	}
	err := revert(context.Background(), []Change{{Kind: Dir, Name: made}, {Kind: Cgroup, Name: name}}, 50*time.Millisecond)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "cgroup "+name+" has processes that cannot be seen from here") || !strings.Contains(err.Error(), "run this once more") {
		t.Errorf("told %v", err)
	}
	if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the rest was not taken back: %v", err)
	}
}

// TestHostCgroup: who was moved into a cgroup of the host's is let out of it alive.
func TestHostCgroup(t *testing.T) {
	groups, err := cgroup.Open()
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and cgroups:", err)
	}
	group := fmt.Sprintf("/hyperkube-host-test-%d", os.Getpid())
	if err := groups.Create(group, cgroup.Resources{}); err != nil {
		t.Skip("making a cgroup:", err)
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
	if err := groups.Enter(group, held.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Revert(context.Background(), []Change{{Kind: HostCgroup, Name: group}}); err != nil {
			t.Fatal(err)
		}
	}
	if groups.Exists(group) {
		t.Error("the cgroup is still there")
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", held.Process.Pid))
	if err != nil || strings.Contains(string(state), ") Z ") {
		t.Errorf("who was in it has ended: %s %v", state, err)
	}
}
