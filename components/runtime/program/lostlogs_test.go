//go:build cgo

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var logRounds = flag.Int("log-rounds", 2, "how often TestLogsOfKilledRuntime starts containers and kills the runtime four times")

// exited reports whether a process has exited. It may not be reaped yet.
func exited(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestLogsOfExitedContainers verifies that the last lines of containers are in their logs if they are written and the
// containers exit while no runtime is there.
func TestLogsOfExitedContainers(t *testing.T) {
	n := newNode(t).imported()
	const script = "echo first; while ! test -e /tmp/end; do sleep 0.01; done; seq 1 2000; echo problem >&2; printf unfinished; exit 3"
	pods := map[string]string{
		"own": n.run(n.pod("own")),
		"shared": n.run(n.pod("shared", func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		})),
		"host":     n.run(n.pod("host", onHost)),
		"users":    n.run(n.pod("users", inUserNS(65536*7))),
		"terminal": n.run(n.pod("terminal")),
	}
	for _, tt := range []struct {
		how    string
		signal syscall.Signal
		// old and new are what to replace in the containers' records, PID is the process.
		old, new string
		code     int32 // the exit code, unless the kernel does not report it
	}{
		{"killed", syscall.SIGKILL, "", "", 3},
		{"terminated", syscall.SIGTERM, "", "", 3},
		// The process is not found.
		{"reaped", syscall.SIGKILL, `"process":{"pid":PID,"start":`, `"process":{"pid":PID,"start":9`, 255},
		// The runtime was stopped after it had recorded the exit, before it had read everything.
		{"recorded", syscall.SIGKILL, `"phase":"running"`, `"phase":"exited"`, 0},
	} {
		how := tt.how
		ids, pids := map[string]string{}, map[string]int{}
		for name, pod := range pods {
			change := func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_CONTAINER
				switch name {
				case "shared":
					c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
				case "host":
					c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
				case "terminal":
					c.Tty = true
					c.Command[2] = strings.Replace(script, "2000", "100", 1) // a terminal holds 4 KiB
				}
			}
			ids[name] = n.startContainer(pod, shell(fmt.Sprint(name, how), script, change))
			pids[name] = n.pidOf(ids[name])
		}
		for name, id := range ids {
			n.eventually("the first line of "+name, func() bool { return strings.HasPrefix(n.logText(id), "first") })
		}
		n.stop(tt.signal)
		for name, pid := range pids {
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/end", pid), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			n.eventually("the exit of "+name, func() bool { return exited(pid) })
			if tt.old != "" {
				n.editRecord(ids[name], strings.ReplaceAll(tt.old, "PID", fmt.Sprint(pid)), strings.ReplaceAll(tt.new, "PID", fmt.Sprint(pid)))
			}
		}
		n.start()
		for name, id := range ids {
			if st := n.waitExit(id); st.ExitCode != 255 && st.ExitCode != tt.code {
				t.Errorf("%s after %s: %v", name, how, st)
			}
			var lines strings.Builder
			fmt.Fprintln(&lines, "first")
			for i := range 2000 {
				fmt.Fprintln(&lines, i+1)
			}
			want, got := lines.String()+"unfinished\n", n.logText(id, "stdout")
			if name == "terminal" {
				want, _, _ = strings.Cut(want, "101\n")
				want, got = want+"problem\nunfinished\n", strings.ReplaceAll(got, "\r", "")
			} else if stderr := n.logText(id, "stderr"); stderr != "problem\n" {
				t.Errorf("%s after %s: stderr is %q", name, how, stderr)
			}
			if got != want {
				t.Errorf("%s after %s: the log has %d bytes, want %d, and ends with %q", name, how, len(got), len(want), got[max(0, len(got)-60):])
			}
			if _, err := n.RemoveContainer(context.Background(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}
	}
	for name, pod := range pods {
		if kept := n.kept(pod); kept != "0" {
			t.Errorf("sandbox %s keeps %s files", name, kept)
		}
	}
}

// editRecord replaces text in a container's record.
func (n *node) editRecord(id, before, after string) {
	n.t.Helper()
	file := n.path("root/containers", id, "record.json")
	data, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	if !strings.Contains(string(data), before) {
		n.t.Fatalf("%s is not in %s", before, data)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(data), before, after)), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// onHost gives a pod the host's namespaces.
func onHost(c *runtimeapi.PodSandboxConfig) {
	o := c.Linux.SecurityContext.NamespaceOptions
	o.Network, o.Pid, o.Ipc = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
}

// kept returns how many files a sandbox's process keeps open in its queue.
func (n *node) kept(pod string) string {
	n.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/4", n.sandboxPID(pod)))
	if err != nil {
		n.t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(data), "scm_fds:")
	if !found {
		n.t.Skip("this kernel does not report queued files")
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// TestKeptOutputIsReleased verifies that files do not accumulate while containers are restarted in a sandbox.
func TestKeptOutputIsReleased(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("restarts"))
	steady := n.startContainer(pod, shell("steady", "sleep 1000"))
	files := func() (count int) {
		for _, pid := range []int{n.cmd.Process.Pid, n.sandboxPID(pod)} {
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			if err != nil {
				t.Fatal(err)
			}
			count += len(fds)
		}
		return count
	}
	n.output(pod, shell("first", "echo x"))
	before := files()
	for i := range 50 {
		if got := n.output(pod, shell(fmt.Sprint("restart-", i), "echo x")); got != "x\n" {
			t.Fatalf("restart %d logged %q", i, got)
		}
	}
	if kept := n.kept(pod); kept != "2" {
		t.Errorf("the sandbox keeps %s files, want the 2 of the container that runs", kept)
	}
	n.eventually("files to be closed", func() bool { return files() <= before })
	if _, err := n.RemoveContainer(context.Background(), &runtimeapi.RemoveContainerRequest{ContainerId: steady}); err != nil {
		t.Fatal(err)
	}
	if kept := n.kept(pod); kept != "0" {
		t.Errorf("the sandbox keeps %s files, want none", kept)
	}
}

// TestLogsOfKilledRuntime kills the runtime four times while containers write and exit. Every line of both streams is in
// the log, once and in order.
func TestLogsOfKilledRuntime(t *testing.T) {
	n := newNode(t).imported()
	const lines = 200
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; echo error $i >&2; [ $((i%%4)) = 0 ] && sleep 0.01; done; printf end", lines)
	var want [2]strings.Builder
	for i := range lines {
		fmt.Fprintln(&want[0], "line", i+1)
		fmt.Fprintln(&want[1], "error", i+1)
	}
	want[0].WriteString("end\n")
	for round := range *logRounds {
		var ids []string
		for i := range 5 {
			pod := n.run(n.pod(fmt.Sprintf("round%d-%d", round, i)))
			ids = append(ids, n.startContainer(pod, shell("c", script)), n.startContainer(pod, shell("d", script)))
		}
		for range 4 {
			id, more := ids[rand.IntN(len(ids))], rand.IntN(2*lines/3)
			until := strings.Count(n.logText(id), "\n") + more
			n.eventually("a log to grow", func() bool { return strings.Count(n.logText(id), "\n") >= min(until, 2*lines+1) })
			n.stop(syscall.SIGKILL)
			n.start()
		}
		for i, id := range ids {
			n.waitExit(id)
			for s, stream := range []string{"stdout", "stderr"} {
				if got, want := n.logText(id, stream), want[s].String(); got != want {
					t.Errorf("round %d: %s of container %d has %d lines, want %d, and ends with %q", round, stream, i,
						strings.Count(got, "\n"), strings.Count(want, "\n"), got[max(0, len(got)-60):])
				}
			}
		}
		if t.Failed() {
			return
		}
		n.removePods("")
	}
}
