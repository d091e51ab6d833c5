package nodestatus

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// TestUserNamespace asks of this process, of another in a user namespace of its
// own, and of what is not there.
func TestUserNamespace(t *testing.T) {
	here := inUserNamespace("/proc/self/ns/user")
	if inUserNamespace("/proc/none/ns/user") {
		t.Error("what is not there is told to be in a user namespace")
	}
	for _, user := range []bool{false, true} {
		c := exec.Command("sleep", "600")
		if user {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		}
		if err := c.Start(); err != nil {
			t.Skipf("no process of its own: %v", err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		if got := inUserNamespace("/proc/" + strconv.Itoa(c.Process.Pid) + "/ns/user"); got != (user || here) {
			t.Errorf("of its own %v: told %v", user, got)
		}
	}
}
