package eviction

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStalls follows the stalls of this machine, in which nobody has to wait for memory.
func TestStalls(t *testing.T) {
	w := NewMemoryWatch("")
	if err := w.Arm(1 << 30); err != nil {
		t.Skip("this kernel tells of no stalls:", err)
	}
	followed := w.file
	if err := w.Arm(1 << 20); err != nil || w.file != followed {
		t.Errorf("stalls that are followed are followed anew: %v", err)
	}
	w.Close()
	w.Close()
	if w.file != nil || w.extra != nil {
		t.Error("something is still armed")
	}
}

// TestThreshold is the kernel of version 1: it reads what is armed, and tells.
func TestThreshold(t *testing.T) {
	dir := t.TempDir()
	const used, left = 3 << 30, 1 << 30
	use := func(bytes int64) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "memory.usage_in_bytes"), fmt.Appendln(nil, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	use(used)
	control := filepath.Join(dir, "cgroup.event_control")
	// armed is the event and the threshold that were written last, and forgets them.
	armed := func() (fd int, at int64) {
		t.Helper()
		raw, err := os.ReadFile(control)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) == 0 {
			return 0, 0
		}
		var usage int
		if _, err := fmt.Sscan(string(raw), &fd, &usage, &at); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(control, 0); err != nil {
			t.Fatal(err)
		}
		return fd, at
	}
	arm := func(w *MemoryWatch, left int64) {
		t.Helper()
		if err := w.Arm(left); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := NewMemoryWatch(dir)
	defer w.Close()
	arm(w, left)
	if _, at := armed(); at != used+left {
		t.Fatalf("armed at %d bytes, want %d", at, used+left)
	}
	use(used + slack/2)
	arm(w, left)
	if _, at := armed(); at != 0 {
		t.Errorf("armed anew at %d, which is hardly elsewhere", at)
	}
	use(used - left)
	arm(w, left)
	fd, at := armed()
	if at != used {
		t.Errorf("armed at %d when less was in use, want %d", at, used)
	}

	if _, err := unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		t.Fatal(err)
	}
	<-w.C()
	<-w.ended
	arm(w, left)
	if _, at := armed(); at != used {
		t.Errorf("armed at %d after it was told, want %d", at, used)
	}

	arm(w, 0)
	if _, at := armed(); at != 0 || w.file != nil {
		t.Errorf("armed at %d while memory is short", at)
	}
}
