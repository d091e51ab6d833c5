package pidlock

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

// terminateEnv is the environment variable with the path of the lock that TestTerminateHolderProcess
// takes.
const terminateEnv = "PIDLOCK_TEST_TERMINATE"

// TestTerminateHolder checks the termination of a process that releases its lock before it exits.
func TestTerminateHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	if e, err := TerminateHolder(t.Context(), path); e != nil || err != nil {
		t.Errorf("no process: %v, %v", e, err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTerminateHolderProcess$", "-test.v")
	cmd.Env = append(os.Environ(), terminateEnv+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := bufio.NewScanner(out)
	for output.Scan() && output.Text() != "taken" {
		continue
	}
	e, err := TerminateHolder(t.Context(), path)
	if err != nil || e == nil {
		t.Fatalf("%v, %v", e, err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil || exiting(cmd.Process.Pid) {
		t.Errorf("the process was terminated too early: %v", err)
	}
	in.Close() // now it exits
	if err := e.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	for output.Scan() {
		continue
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process was killed: %v", err)
	}
}

// TestTerminateHolderProcess is the process of TestTerminateHolder: on SIGTERM it releases its lock, and it
// exits when its input is closed.
func TestTerminateHolderProcess(t *testing.T) {
	path := os.Getenv(terminateEnv)
	if path == "" {
		t.Skip("runs only as a part of TestTerminateHolder")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lock, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("taken")
	<-ctx.Done()
	lock.Release()
	_, _ = os.Stdin.Read(make([]byte, 1)) // fails when the input is closed
}
