package eviction

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStalls watches the memory stalls of this machine, which must not have any.
func TestStalls(t *testing.T) {
	w := NewMemoryWatch("")
	if err := w.Arm(1 << 30); err != nil {
		t.Skip("the kernel does not support PSI:", err)
	}
	followed := w.file
	if err := w.Arm(1 << 20); err != nil || w.file != followed {
		t.Errorf("watching pressure again: %v", err)
	}
	w.Close()
	w.Close()
	if w.file != nil || w.extraFDs != nil {
		t.Error("the notification is still armed")
	}
}

// TestThreshold takes the role of a kernel with cgroup v1: it reads the armed threshold and signals
// the event.
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
	// armed returns the event descriptor and the threshold that were written last, and clears the
	// file.
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
	use(used + minRearmDifference/2)
	arm(w, left)
	if _, at := armed(); at != 0 {
		t.Errorf("armed again at %d, which is hardly different", at)
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
	<-w.done
	arm(w, left)
	if _, at := armed(); at != used {
		t.Errorf("armed at %d after the notification, want %d", at, used)
	}

	arm(w, 0)
	if _, at := armed(); at != 0 || w.file != nil {
		t.Errorf("armed at %d under memory pressure", at)
	}
}
