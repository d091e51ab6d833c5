package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeV2 creates a directory that looks like a unified hierarchy with one cgroup.
func fakeV2(t *testing.T) (*Manager, string) {
	t.Helper()
	root := t.TempDir()
	put(t, root, "cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
	put(t, root, "cgroup.subtree_control", "")
	m, err := OpenTable(strings.NewReader(
		"25 1 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / " + root + " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"))
	if err != nil {
		t.Fatal(err)
	}
	return m, root
}

func put(t *testing.T, dir, file, value string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, dir, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestUnifiedResources(t *testing.T) {
	m, root := fakeV2(t)
	if !m.Unified() {
		t.Fatal("a unified hierarchy was not recognised")
	}
	pods := filepath.Join(root, "pods")
	one := filepath.Join(pods, "one")
	put(t, pods, "cgroup.subtree_control", "")
	for _, file := range []string{"cpu.weight", "cpu.max", "memory.max", "pids.max", "cpuset.cpus", "hugetlb.2MB.max", "memory.min", "memory.high", "memory.oom.group"} {
		put(t, one, file, "")
	}
	err := m.Create("/pods/one", Resources{
		CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, MemoryLimit: 1 << 20, PidsLimit: Unlimited,
		CPUSetCPUs: "0-1", HugepageLimits: map[string]uint64{"2MB": 0}, Unified: map[string]string{"memory.min": "7", "memory.high": "900000", "memory.oom.group": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"cpu.weight": "100", "cpu.max": "50000 100000", "memory.max": "1048576", "pids.max": "max",
		"cpuset.cpus": "0-1", "hugetlb.2MB.max": "0", "memory.min": "7", "memory.high": "900000", "memory.oom.group": "1",
	} {
		if got := get(t, one, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	for _, dir := range []string{root, pods} {
		if got := get(t, dir, "cgroup.subtree_control"); got != "+cpuset +cpu +io +memory +hugetlb +pids" {
			t.Errorf("%s delegates %q", dir, got)
		}
	}
	if err := m.Set("/pods/one", Resources{CPUPeriod: 200000}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, one, "cpu.max"); got != "50000 200000" {
		t.Errorf("a new period made cpu.max %q", got)
	}
	if err := m.Set("/pods/one", Resources{CPUShares: 2, CPUQuota: Unlimited, MemoryLimit: Unlimited, Unified: map[string]string{"memory.high": "max"}}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.weight": "1", "cpu.max": "max", "memory.max": "max", "memory.high": "max", "memory.oom.group": "1"} {
		if got := get(t, one, file); got != want {
			t.Errorf("without limits %s is %q, want %q", file, got, want)
		}
	}
	if err := m.Set("/pods/one", Resources{Unified: map[string]string{"../x": "1"}}); err == nil {
		t.Error("a file outside of the cgroup was accepted")
	}
}

func TestPopulated(t *testing.T) {
	m, root := fakeV2(t)
	put(t, filepath.Join(root, "used"), "cgroup.events", "populated 1\nfrozen 0\n")
	put(t, filepath.Join(root, "unused"), "cgroup.events", "populated 0\nfrozen 0\n")
	for name, want := range map[string]bool{"/used": true, "/unused": false, "/missing": false} {
		if got := m.Populated(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (&Manager{}).Populated("/used") {
		t.Error("a cgroup of version 1 is populated")
	}
}

// TestDisableControllers uses a file in which each write replaces the content, so it shows the last write.
func TestDisableControllers(t *testing.T) {
	m, root := fakeV2(t)
	for enabled, want := range map[string]string{"cpu memory\n": "cpu memory\n", "cpu io memory\n": "-io", "": ""} {
		put(t, root, subtreeControl, enabled)
		if got, err := m.EnabledControllers(); err != nil || got != strings.TrimSpace(enabled) {
			t.Errorf("%q: read %q, %v", enabled, got, err)
		}
		if err := m.DisableControllers("memory pids cpu"); err != nil {
			t.Fatal(err)
		}
		if got := get(t, root, subtreeControl); got != want {
			t.Errorf("%q: wrote %q, want %q", enabled, got, want)
		}
	}
	if err := (&Manager{}).DisableControllers(""); err != nil {
		t.Errorf("version 1: %v", err)
	}
}

func TestUnifiedStats(t *testing.T) {
	m, root := fakeV2(t)
	one := filepath.Join(root, "one")
	put(t, one, "cpu.stat", "usage_usec 12\nuser_usec 3\n")
	put(t, one, "memory.current", "1000\n")
	put(t, one, "memory.max", "max\n")
	put(t, one, "memory.stat", "anon 300\nfile 500\ninactive_file 400\npgfault 9\npgmajfault 2\n")
	put(t, one, "memory.events", "oom 1\noom_kill 1\n")
	put(t, one, "pids.current", "4\n")
	put(t, one, "cgroup.procs", "12\n0\n11\n")
	s, err := m.Stats("one")
	if err != nil {
		t.Fatal(err)
	}
	s.Time = time.Time{}
	want := Stats{CPUNanoseconds: 12000, MemoryUsage: 1000, MemoryWorkingSet: 600, MemoryRSS: 300,
		PageFaults: 9, MajorPageFaults: 2, Pids: 4, OOMKills: 1}
	if s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
	pids, err := m.Pids("one")
	if err != nil || fmt.Sprint(pids) != "[11 12]" {
		t.Errorf("got processes %v, %v", pids, err)
	}
	if _, err := m.Stats("none"); !errors.Is(err, ErrNotExist) {
		t.Errorf("error for a missing cgroup: %v", err)
	}
}

func TestVersionOneTable(t *testing.T) {
	m, err := OpenTable(strings.NewReader(`1 0 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
2 0 0:2 / /sys/fs/cgroup/with\040space rw - cgroup cgroup rw,memory
3 0 0:3 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
4 0 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`))
	if err != nil {
		t.Fatal(err)
	}
	if m.Unified() {
		t.Error("a hybrid machine was detected as version 2")
	}
	if got := m.Dir("cpuacct", "a/../../b"); got != "/sys/fs/cgroup/cpu,cpuacct/b" {
		t.Errorf("got %s", got)
	}
	if got := m.Dir("memory", "b"); got != "/sys/fs/cgroup/with space/b" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(m.Controllers(), len(m.Dirs("x"))); got != "[cpu cpuacct memory] 3" {
		t.Errorf("got %s", got)
	}
	if _, err := OpenTable(strings.NewReader("")); err == nil {
		t.Error("a machine without cgroups was accepted")
	}
}

// TestRemoveHybrid checks that Remove also removes cgroups in the unified hierarchy without
// controllers.
func TestRemoveHybrid(t *testing.T) {
	memory, unified := t.TempDir(), t.TempDir()
	m, err := OpenTable(strings.NewReader(fmt.Sprintf(`1 0 0:1 / %s rw - cgroup cgroup rw,memory
2 0 0:2 / %s rw - cgroup2 cgroup2 rw
`, memory, unified)))
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{memory, unified} {
		if err := os.MkdirAll(filepath.Join(point, "pods", "one"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second call finds nothing to remove
		if err := m.Remove(t.Context(), "/pods"); err != nil {
			t.Fatal(err)
		}
	}
	for _, point := range []string{memory, unified} {
		if left, err := os.ReadDir(point); err != nil || len(left) > 0 {
			t.Errorf("remaining cgroups %v, %v", left, err)
		}
	}
}

func TestCPUWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 0, 1: 1, 2: 1, 1024: 100, 262144: 10000, 1 << 40: 10000} {
		if got := CPUWeight(shares); got != want {
			t.Errorf("weight of %d is %d, want %d", shares, got, want)
		}
	}
}

// TestKernel tests with the cgroups of the machine.
func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	m, err := Open()
	if err != nil {
		t.Skip(err)
	}
	top := fmt.Sprintf("/hyperkube-test-%d", os.Getpid())
	inner := top + "/pod/one"
	t.Cleanup(func() {
		_ = m.Kill(top)
		if err := m.Remove(t.Context(), top); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	if err := m.Create(inner, Resources{CPUShares: 512, CPUQuota: 20000, CPUPeriod: 100000, MemoryLimit: 64 << 20, PidsLimit: 50}); err != nil {
		t.Skip("cgroups cannot be created:", err)
	}
	if err := m.Set(inner, Resources{CPUQuota: 5000, CPUPeriod: 10000}); err != nil {
		t.Error("a shorter period:", err)
	}
	if err := m.Set(inner, Resources{CPUQuota: Unlimited, MemoryLimit: Unlimited, PidsLimit: Unlimited}); err != nil {
		t.Error("removing limits:", err)
	}
	if err := m.Set(inner, Resources{MemoryLimit: 64 << 20}); err != nil {
		t.Error(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := m.AddProcess(inner, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, err := m.Pids(top); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("got processes %v, %v", pids, err)
	}
	if s, err := m.Stats(inner); err != nil || s.Pids != 1 || s.MemoryLimit != 64<<20 {
		t.Errorf("got %+v, %v", s, err)
	}
	if names, err := m.Children(top); err != nil || fmt.Sprint(names) != "[pod]" {
		t.Errorf("got children %v, %v", names, err)
	}
	if err := m.Kill(top); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process exited with %v", err)
	}
	if err := m.Remove(t.Context(), top); err != nil {
		t.Error(err)
	}
	if m.Exists(top) {
		t.Error("the cgroup still exists")
	}
	if err := m.Remove(t.Context(), top); err != nil {
		t.Error("removing twice:", err)
	}
	if err := m.Kill(top); err != nil {
		t.Error("killing a missing cgroup:", err)
	}
}
