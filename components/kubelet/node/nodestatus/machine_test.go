package nodestatus

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestUserNamespace checks this process, a process in another user namespace, and a file that does
// not exist.
func TestUserNamespace(t *testing.T) {
	here := inUserNamespace("/proc/self/ns/user")
	if inUserNamespace("/proc/none/ns/user") {
		t.Error("a missing file is reported as a user namespace")
	}
	for _, user := range []bool{false, true} {
		c := exec.Command("sleep", "600")
		if user {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		}
		if err := c.Start(); err != nil {
			t.Skipf("starting a process: %v", err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		if got := inUserNamespace("/proc/" + strconv.Itoa(c.Process.Pid) + "/ns/user"); got != (user || here) {
			t.Errorf("own namespace %v: got %v", user, got)
		}
	}
}

func TestAllocatable(t *testing.T) {
	list := func(of map[v1.ResourceName]string) v1.ResourceList {
		out := v1.ResourceList{}
		for name, q := range of {
			out[name] = resource.MustParse(q)
		}
		return out
	}
	got := Allocatable(
		list(map[v1.ResourceName]string{"cpu": "4", "memory": "10Gi", "pods": "110", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "2Gi", "ephemeral-storage": "1Gi"}),
		list(map[v1.ResourceName]string{"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "5Gi", "pid": "1000"}),
	)
	for name, want := range list(map[v1.ResourceName]string{"cpu": "3500m", "memory": "6Gi", "pods": "110", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "2Gi", "ephemeral-storage": "0"}) {
		if q := got[name]; q.Cmp(want) != 0 {
			t.Errorf("%s: %s, want %s", name, q.String(), want.String())
		}
	}
	if len(got) != 6 {
		t.Errorf("%v", got)
	}
	small := Allocatable(list(map[v1.ResourceName]string{"memory": "1Gi", "hugepages-2Mi": "2Gi"}), nil)
	if q := small[v1.ResourceMemory]; !q.IsZero() {
		t.Errorf("memory %s despite more huge pages", q.String())
	}
}
