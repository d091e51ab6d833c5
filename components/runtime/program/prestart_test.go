//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// spares returns the pre-started processes among the runtime's children.
func (n *node) spares() (list []int) {
	n.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range threads {
		children, _ := os.ReadFile(file) // threads may have exited
		for word := range strings.FieldsSeq(string(children)) {
			line, _ := os.ReadFile("/proc/" + word + "/cmdline")
			env, _ := os.ReadFile("/proc/" + word + "/environ")
			if pid, err := strconv.Atoi(word); err == nil && strings.HasSuffix(string(line), "\x00init\x00") && strings.Contains(string(env), "HYPERKUBE_RUNTIME_SPARE=") {
				list = append(list, pid)
			}
		}
	}
	return list
}

// oneSpare waits for a pre-started process that is not in others.
func (n *node) oneSpare(others ...int) (pid int) {
	n.t.Helper()
	n.eventually("a spare process", func() bool {
		list := n.spares()
		if len(list) == 1 && !slices.Contains(others, list[0]) {
			pid = list[0]
		}
		return pid != 0
	})
	return pid
}

// TestSpare checks that containers use pre-started processes, that there is one at a time, that the
// exit of one has no effect, and that none is left after the runtime exits or is killed.
func TestSpare(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("spare"))
	var used []int
	for i := range 3 {
		spare := n.oneSpare(used...)
		id := n.startContainer(pod, shell(fmt.Sprint("c", i), "echo started; exec sleep 1000"))
		// Until its program is executed, the process still runs our program.
		n.eventually("its output", func() bool { return n.logText(id) == "started\n" })
		if pid := n.pidOf(id); pid != spare {
			t.Errorf("container %d is process %d, not the spare %d", i, pid, spare)
		}
		used = append(used, spare)
		// It is a normal process of the container.
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", spare))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(groups)) {
			// Named hierarchies belong to other software.
			if !strings.Contains(line, ":name=") && !strings.HasSuffix(strings.TrimSpace(line), id) {
				t.Errorf("the process is in cgroup %s", line)
			}
		}
		// Output is passed on, it has its own files, and it is PID 1.
		out, err := n.exec(id, 60, "sh", "-c", "ls /proc/1/fd; ls -d /proc/[0-9]*; cat /proc/1/oom_score_adj; cat /proc/1/environ | tr '\\0' '\\n' | grep -c HYPERKUBE")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(string(out.Stdout))
		if len(lines) < 4 || !slices.Equal(lines[:3], []string{"0", "1", "2"}) || lines[3] != "/proc/1" || lines[len(lines)-1] != "0" {
			t.Errorf("the process sees %q", out.Stdout)
		}
	}

	// The exit of a pre-started process has no effect.
	spare := n.oneSpare(used...)
	if err := syscall.Kill(spare, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	id := n.startContainer(pod, shell("after", "echo started; exec sleep 1000"))
	n.eventually("its output", func() bool { return n.logText(id) == "started\n" })
	used = append(used, spare, n.pidOf(id))

	// An error in a pre-started process is reported.
	spare = n.oneSpare(used...)
	bad := shell("bad", "")
	bad.Command = []string{"/no/such"}
	id, err := n.create(pod, bad)
	if err == nil {
		_, err = n.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id})
	}
	if err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("a bad command gives %v", err)
	}
	used = append(used, spare)

	// A container in the pod's PID namespace does not use one.
	spare = n.oneSpare(used...)
	shared := shell("shared", "exec sleep 1000")
	shared.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE}}}
	if pid := n.pidOf(n.startContainer(pod, shared)); pid == spare {
		t.Error("a container with others' processes took the spare")
	}
	if list := n.spares(); !slices.Contains(list, spare) {
		t.Errorf("a container with others' processes ended the spare %d, now there are %v", spare, list)
	}

	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		n.eventually("a spare process", func() bool { return len(n.spares()) == 1 || s == syscall.SIGTERM })
		list := n.spares()
		n.stop(s)
		for _, pid := range list {
			n.eventually("the spare's end", func() bool {
				return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || ended(pid)
			})
		}
		n.start()
	}
}

// ended reports whether a process has exited or is a zombie.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
