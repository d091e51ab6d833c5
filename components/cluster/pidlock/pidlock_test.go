package pidlock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestLockIsHeldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	if pid, err := Holder(path); pid != 0 || err != nil {
		t.Fatalf("holder of nothing: %d, %v", pid, err)
	}
	lock, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice: %v", err)
	}
	if pid, err := Holder(path); pid != os.Getpid() || err != nil {
		t.Errorf("holder %d, %v", pid, err)
	}
	lock.Release()
	if pid, err := Holder(path); pid != 0 || err != nil {
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
				if pid, err := Holder(path); err != nil || pid != 0 && pid != os.Getpid() {
					t.Errorf("holder %d, %v", pid, err)
					return
				}
			}
		})
	}
	for range 500 {
		lock, err := Take(path)
		if err != nil {
			t.Errorf("taking what nobody has: %v", err)
			break
		}
		lock.Release()
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
	if err := End(ctx, cmd.Process.Pid, func() (int, error) { return 1, nil }); err != nil {
		t.Error(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil || dying(cmd.Process.Pid) {
		t.Errorf("a process was ended that had only got the number: %v", err)
	}
	if err := End(ctx, cmd.Process.Pid, who); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := End(ctx, cmd.Process.Pid, who); err != nil {
		t.Errorf("ending what has ended: %v", err)
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
