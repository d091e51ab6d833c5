package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/process"
)

// startSandbox starts a sandbox's process for a test.
func startSandbox(t *testing.T) *process.Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	program := filepath.Join(t.TempDir(), "pause")
	if err := Install(program); err != nil {
		t.Fatal(err)
	}
	h, err := Start(Options{ID: "test", Program: program, HostNetwork: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.Signal(unix.SIGKILL)
		<-h.Done()
		h.Close()
	})
	return h
}

// fifo creates a FIFO and returns its path.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// write writes to a FIFO without a reader, and closes it.
func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// content reads what is in a FIFO that has no writer.
func content(t *testing.T, path string) string {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 100)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// queued returns how many messages a sandbox's process has in its queue.
func queued(t *testing.T, h *process.Handle) (count int) {
	t.Helper()
	receive, err := h.File(keepReceiveFD)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(receive)
	for {
		_, fds, err := receiveKept(receive, 0)
		if errors.Is(err, unix.EAGAIN) {
			return count
		}
		if err != nil {
			t.Fatal(err)
		}
		closeFDs(fds)
		count++
	}
}

func TestKeep(t *testing.T) {
	h := startSandbox(t)
	a, b, c := fifo(t), fifo(t), fifo(t)
	if err := Keep(h, "first", a, b); err != nil {
		t.Fatal(err)
	}
	if err := Keep(h, "second", c); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{a, b, c} {
		write(t, path, "kept in "+path)
	}
	for _, path := range []string{a, c} {
		if got := content(t, path); got != "kept in "+path {
			t.Errorf("%s has %q", path, got)
		}
	}
	if err := Release(h, "first"); err != nil {
		t.Fatal(err)
	}
	write(t, c, "still kept")
	if got := content(t, b); got != "" {
		t.Errorf("a released FIFO has %q", got)
	}
	if got := content(t, c); got != "still kept" {
		t.Errorf("a kept FIFO has %q", got)
	}
	if err := Keep(h, "none", filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("keeping a file that does not exist: %v", err)
	}
}

// TestKeepRestarts verifies that nothing accumulates when containers are restarted in a sandbox, even if runtimes were
// killed while they released files.
func TestKeepRestarts(t *testing.T) {
	h := startSandbox(t)
	steady, other := fifo(t), fifo(t)
	if err := Keep(h, "steady", steady); err != nil {
		t.Fatal(err)
	}
	write(t, steady, "kept")
	for i := range 50 {
		name := fmt.Sprint("restart-", i)
		if err := Keep(h, name, other, other); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 { // a start that is repeated
			if err := Keep(h, name, other, other); err != nil {
				t.Fatal(err)
			}
			send, err := h.File(keepSendFD)
			if err != nil {
				t.Fatal(err)
			}
			err = sendKept(send, "mark of a killed process", nil)
			unix.Close(send)
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := Release(h, name); err != nil {
			t.Fatal(err)
		}
	}
	if got := content(t, steady); got != "kept" {
		t.Errorf("the FIFO of the running container has %q", got)
	}
	if count := queued(t, h); count != 1 {
		t.Errorf("%d messages are queued, want 1", count)
	}
}

// TestKeepEarlierVersion verifies that a sandbox that a runtime without Keep has started is no obstacle.
func TestKeepEarlierVersion(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pause")
	if err := Install(program); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := os.StartProcess(program, []string{"/pause"}, &os.ProcAttr{Files: []*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = p.Wait() }()
	defer func() { _ = p.Kill() }()
	h, err := process.Open(p.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := Keep(h, "name", fifo(t)); !errors.Is(err, unix.EBADF) {
		t.Errorf("keeping: %v", err)
	}
	if err := Release(h, "name"); !errors.Is(err, unix.EBADF) {
		t.Errorf("releasing: %v", err)
	}
}
