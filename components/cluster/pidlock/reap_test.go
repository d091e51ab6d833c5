package pidlock

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReapChildren checks that children that exit while `down` runs are reaped.
func TestReapChildren(t *testing.T) {
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	state := func() error {
		return unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	}

	reapChildren(func() bool { return false })
	if err := state(); err != nil {
		t.Fatalf("a running child was reaped: %v", err)
	}
	calls := 0
	reapChildren(func() bool {
		if calls++; calls == 2 {
			in.Close() // the child exits
		}
		return true
	})
	if err := state(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("an exited child is not reaped: %v", err)
	}
	if calls < 2 {
		t.Errorf("down was called %d times", calls)
	}
}
