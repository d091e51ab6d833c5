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

// spares returns the runtime's children that wait to become a container's
// process.
func (n *node) spares() (list []int) {
	n.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range threads {
		children, _ := os.ReadFile(file) // threads end
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

// oneSpare waits until there is a spare that is none of others.
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

// TestSpare sees that containers are started with processes that were made
// before, that there is one at a time, that one that dies is missed by nobody, and
// that none is left by a runtime that ends, however it does.
func TestSpare(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("spare"))
	var used []int
	for i := range 3 {
		spare := n.oneSpare(used...)
		id := n.startContainer(pod, shell(fmt.Sprint("c", i), "echo started; exec sleep 1000"))
		// Until its program is executed it is ours still.
		n.eventually("its output", func() bool { return n.logText(id) == "started\n" })
		if pid := n.pidOf(id); pid != spare {
			t.Errorf("container %d is process %d, not the spare %d", i, pid, spare)
		}
		used = append(used, spare)
		// It is a container's process in every respect.
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", spare))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(groups)) {
			// Hierarchies that somebody has named are nobody's but theirs.
			if !strings.Contains(line, ":name=") && !strings.HasSuffix(strings.TrimSpace(line), id) {
				t.Errorf("the process is in cgroup %s", line)
			}
		}
		// Its shell's output comes through, its files are its own, it is the
		// first of its processes.
		out, err := n.exec(id, 60, "sh", "-c", "ls /proc/1/fd; ls -d /proc/[0-9]*; cat /proc/1/oom_score_adj; cat /proc/1/environ | tr '\\0' '\\n' | grep -c HYPERKUBE")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(string(out.Stdout))
		if len(lines) < 4 || !slices.Equal(lines[:3], []string{"0", "1", "2"}) || lines[3] != "/proc/1" || lines[len(lines)-1] != "0" {
			t.Errorf("the process sees %q", out.Stdout)
		}
	}

	// One that dies is not missed.
	spare := n.oneSpare(used...)
	if err := syscall.Kill(spare, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	id := n.startContainer(pod, shell("after", "echo started; exec sleep 1000"))
	n.eventually("its output", func() bool { return n.logText(id) == "started\n" })
	used = append(used, spare, n.pidOf(id))

	// Nor one that fails, and what it fails for is told.
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

	// What shares the pod's processes has none.
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

// ended tells whether a process has ended and is not reaped yet.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
