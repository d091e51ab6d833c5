//go:build cgo

package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/host/process"
)

// TestNetworkOfAnother checks that CNI plugins do not get the network namespace of an unrelated
// process that has the PID of an exited sandbox process.
func TestNetworkOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sandbox := func(pid int) *sandboxState {
		h, err := process.Open(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return &sandboxState{handle: h, record: sandboxRecord{config: &runtimeapi.PodSandboxConfig{}}}
	}
	for range 100 {
		first := exec.Command("sleep", "1000")
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		pid := first.Process.Pid
		s := sandbox(pid)
		if pod, err := cniPod(s); err != nil || pod.Netns != fmt.Sprintf("/proc/%d/ns/net", pid) {
			t.Errorf("while it runs: %q, %v", pod.Netns, err)
		}
		_ = first.Process.Kill()
		_ = first.Wait()
		// The next process gets the PID after this one.
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0); err != nil {
			t.Skip("this kernel does not give numbers on request:", err)
		}
		second := exec.Command("sleep", "1000")
		if err := second.Start(); err != nil {
			t.Fatal(err)
		}
		same := second.Process.Pid == pid
		pod, err := cniPod(s)
		_ = second.Process.Kill()
		_ = second.Wait()
		if err != nil || pod.Netns != "" {
			t.Errorf("the same number %t: %q, %v", same, pod.Netns, err)
		}
		if same {
			return
		}
	}
	t.Skip("others were always quicker to take the number")
}

// TestMeasuringDoesNotBlockReads checks that a container's state can be read while its disk usage is
// measured.
func TestMeasuringDoesNotBlockReads(t *testing.T) {
	c := &containerState{}
	c.diskUsage.mu.Lock() // held during the directory walk
	defer c.diskUsage.mu.Unlock()
	c.get()
	if c.running() != nil {
		t.Error("it runs")
	}
}

// TestForgetSandbox checks that a sandbox with containers is not forgotten until they are removed.
func TestForgetSandbox(t *testing.T) {
	s, c := &sandboxState{id: "s", record: sandboxRecord{config: &runtimeapi.PodSandboxConfig{}}}, &containerState{id: "c", sandbox: "s"}
	r := newInventory()
	r.sandboxes["s"], r.containers["c"] = s, c
	if left, _ := r.forgetSandbox(s); left != c || r.sandboxes["s"] == nil {
		t.Error("forgotten with a container in it")
	}
	delete(r.containers, "c")
	if left, known := r.forgetSandbox(s); left != nil || !known || r.sandboxes["s"] != nil {
		t.Error("not forgotten")
	}
}
