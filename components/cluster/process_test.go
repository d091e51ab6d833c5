package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hyperkube/internal/layout"
)

func mustMkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestLockIsHeldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	if pid, err := holder(path); pid != 0 || err != nil {
		t.Fatalf("holder of nothing: %d, %v", pid, err)
	}
	lock, err := takeLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeLock(path); !errors.Is(err, errHeld) {
		t.Errorf("taken twice: %v", err)
	}
	if pid, err := holder(path); pid != os.Getpid() || err != nil {
		t.Errorf("holder %d, %v", pid, err)
	}
	lock.release()
	if pid, err := holder(path); pid != 0 || err != nil {
		t.Errorf("holder after release: %d, %v", pid, err)
	}
}

// Who asks for the holder keeps nobody from becoming it, and is never told of one
// that names nobody.
func TestAskingForTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	var stop atomic.Bool
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for !stop.Load() {
				if pid, err := holder(path); err != nil || pid != 0 && pid != os.Getpid() {
					t.Errorf("holder %d, %v", pid, err)
					return
				}
			}
		})
	}
	for range 500 {
		lock, err := takeLock(path)
		if err != nil {
			t.Errorf("taking what nobody has: %v", err)
			break
		}
		lock.release()
	}
	stop.Store(true)
	asking.Wait()
}

func TestEndProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	who := func() (int, error) { return cmd.Process.Pid, nil }
	if err := endProcess(ctx, cmd.Process.Pid, func() (int, error) { return 1, nil }); err != nil {
		t.Error(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil || dying(cmd.Process.Pid) {
		t.Errorf("a process was ended that had only got the number: %v", err)
	}
	if err := endProcess(ctx, cmd.Process.Pid, who); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := endProcess(ctx, cmd.Process.Pid, who); err != nil {
		t.Errorf("ending what has ended: %v", err)
	}
}

func TestStepsTravel(t *testing.T) {
	var out bytes.Buffer
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, `{"text":"etcd is ready","took":1000000}`+"\n"+`{"error":"no luck","code":2}`+"\n")
		w.Close()
	}()
	err := receiveSteps(r, printStep(&out))
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != ExitPreflight || err.Error() != "no luck" {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "etcd is ready") {
		t.Errorf("printed %q", out.String())
	}
	if err := receiveSteps(strings.NewReader(""), printStep(&out)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("silence: %v", err)
	}
}

func TestTurn(t *testing.T) {
	l := layout.Under(t.TempDir())
	ctx := t.Context()
	// Several may start something, ...
	a, err := takeTurn(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := takeTurn(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	// ... which who takes it away waits for.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := takeTurn(ended, l, true); !errors.Is(err, context.Canceled) {
		t.Errorf("taken while others have it: %v", err)
	}
	a.end()
	b.end()
	// Many take it away at once: one after the other, though each leaves
	// nothing behind, not even the file.
	var inside atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			alone, err := takeTurn(ctx, l, true)
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			if _, err := takeTurn(ctx, l, false); !errors.Is(err, errHeld) {
				t.Errorf("started while it is taken away: %v", err)
			}
			inside.Add(-1)
			alone.remove()
		})
	}
	group.Wait()
	if _, err := os.Stat(l.Run + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock's file stays: %v", err)
	}
}

// TestDying tells a process that was killed from one that lives: its lock may be
// the last to go.
func TestDying(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	if dying(cmd.Process.Pid) {
		t.Error("who lives is dying")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Killed, a zombie, or gone: none of these comes back.
	if !dying(cmd.Process.Pid) {
		t.Error("who was killed is not dying")
	}
	_ = cmd.Wait()
	if !dying(cmd.Process.Pid) {
		t.Error("who is gone is not dying")
	}
}
