package volume

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testwait"
)

// TestToolWithHelpers checks that a canceled tool is killed with its helpers, and that processes
// that keep its output open are not waited for.
func TestToolWithHelpers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := RunTool(ctx, "sh", "-c", "sleep 100000 & echo $! > "+file+".new; mv "+file+".new "+file+"; wait")
		ended <- err
	}()
	var raw []byte
	testwait.Until(t, "the helper's start", func() bool {
		raw, _ = os.ReadFile(file)
		return len(raw) > 0
	})
	helper, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(helper, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer func() { _ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }()
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a canceled tool succeeded")
		}
	case <-time.After(time.Minute):
		t.Fatal("waited for a canceled tool")
	}
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(polled, 60_000); n != 1 {
		t.Errorf("the helper still runs: %v", err)
	}
}

// TestServiceOfTool checks that a tool succeeds if it leaves a service running that keeps its
// output open.
func TestServiceOfTool(t *testing.T) {
	out, err := RunTool(t.Context(), "sh", "-c", "sleep 60 & echo $!")
	if err != nil {
		t.Error(err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(out)); err == nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func mountOf(t *testing.T, dir string) *mountinfo.Info {
	t.Helper()
	list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s is mounted %d times: %v", dir, len(list), err)
	}
	return list[0]
}

// TestNotSwapped checks that volumes in memory, such as Secrets, are never swapped to disk.
func TestNotSwapped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir, other := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", other, "tmpfs", 0, "noswap"); err != nil {
		t.Skip("not supported by the kernel:", err)
	}
	defer func() { _ = Unmount(other) }()
	if err := mountTmpfs(dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = Unmount(dir) }()
	if m := mountOf(t, dir); !strings.Contains(m.VFSOptions, "noswap") || !strings.Contains(m.VFSOptions, "size=1024k") {
		t.Errorf("options %s", m.VFSOptions)
	}
}

// TestSubPathMountedTwice checks that the mount point of a subPath is removed, and never the
// content of the volume mounted there.
func TestSubPathMountedTwice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	set, pod, volume := &Set{}, t.TempDir(), t.TempDir()
	file := filepath.Join(volume, "sub", "file")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unmountBelow(pod) }()
	target, err := set.SubPath(pod, "v", volume, "sub", "c", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Dir(file), target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := set.SubPath(pod, "v", volume, "sub", "c", 0); err != nil {
		t.Error(err)
	}
	if read(t, file) != "x" {
		t.Error("the volume has lost a file")
	}
	mountOf(t, target)
}
