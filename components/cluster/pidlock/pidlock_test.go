package pidlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hyperkube/internal/testing/testwait"
)

func TestAcquire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	if pid, err := Holder(path); pid != 0 || err != nil {
		t.Fatalf("holder of a missing file: %d, %v", pid, err)
	}
	lock, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(path); !errors.Is(err, ErrHeld) {
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

// TestHolderDuringAcquire checks that Holder neither prevents other processes from taking the lock
// nor returns an error while they do.
func TestHolderDuringAcquire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !stop.Load() {
				if pid, err := Holder(path); err != nil || pid != 0 && pid != os.Getpid() {
					t.Errorf("holder %d, %v", pid, err)
					return
				}
			}
		})
	}
	for range 500 {
		lock, err := Acquire(path)
		if err != nil {
			t.Errorf("taking a free lock: %v", err)
			break
		}
		lock.Release()
	}
	stop.Store(true)
	readers.Wait()
}

func TestTerminate(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	holder := func() (int, error) { return cmd.Process.Pid, nil }
	// Signals to a stopped process stay pending.
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	status := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	testwait.Until(t, "the process to stop", func() bool { return strings.Contains(status(), "State:\tT") })
	if err := Terminate(ctx, cmd.Process.Pid, func() (int, error) { return 1, nil }); err != nil {
		t.Error(err)
	}
	if text := status(); exiting(cmd.Process.Pid) || !strings.Contains(text, "\nShdPnd:\t0000000000000000\n") {
		t.Errorf("process with a reused PID was terminated: %s", text)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := Terminate(ctx, cmd.Process.Pid, holder); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := Terminate(ctx, cmd.Process.Pid, holder); err != nil {
		t.Errorf("terminating an exited process: %v", err)
	}
}

// TestExiting checks that a killed process is distinguished from a running one.
func TestExiting(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	if exiting(cmd.Process.Pid) {
		t.Error("running process is reported as exiting")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Killed, zombie, or no longer existing.
	if !exiting(cmd.Process.Pid) {
		t.Error("killed process is not reported as exiting")
	}
	_ = cmd.Wait()
	if !exiting(cmd.Process.Pid) {
		t.Error("exited process is not reported as exiting")
	}
}
