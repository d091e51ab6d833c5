//go:build cgo

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// slackOf is the slack of a thread's timers as the kernel tells it.
func slackOf(t *testing.T, thread any) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%v/timerslack_ns", thread))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestSlack: of the runtime, and of a spare, only Go's monitor thread sleeps
// longer, and containers and commands have what this process has.
func TestSlack(t *testing.T) {
	n := newNode(t).imported()
	own := slackOf(t, os.Getpid())
	pod := n.run(n.pod("slack"))
	spare := n.oneSpare()
	for pid, want := range map[int]string{n.cmd.Process.Pid: fmt.Sprint(monitorSlack.Nanoseconds()), spare: "10000000"} {
		folder, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		threads, err := folder.Readdirnames(-1)
		if err != nil || len(threads) < 2 {
			t.Fatal(threads, err)
		}
		if is := slackOf(t, threads[1]); is != want {
			t.Errorf("the monitor of %d has a slack of %s ns, want %s", pid, is, want)
		}
		n.eventually("the slack of the first thread", func() bool { return slackOf(t, threads[0]) == own })
	}
	id := n.startContainer(pod, shell("c", "cat /proc/self/timerslack_ns; exec sleep 1000"))
	if pid := n.pidOf(id); pid != spare {
		t.Errorf("the container is process %d, not the spare %d", pid, spare)
	}
	n.eventually("its output", func() bool { return n.logText(id) == own+"\n" })
	// Threads of the runtime that the monitor has made sleep longer as well. Any of
	// them may start a process.
	for i := range 40 {
		got, err := n.exec(id, 60, "cat", "/proc/self/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		if is := strings.TrimSpace(string(got.Stdout)); is != own {
			t.Fatalf("command %d has a slack of %s ns, want %s", i, is, own)
		}
	}
	for i := range 10 {
		name := fmt.Sprint("more", i)
		id := n.startContainer(n.run(n.pod(name)), shell(name, "exec sleep 1000"))
		if is := slackOf(t, n.pidOf(id)); is != own {
			t.Fatalf("container %d has a slack of %s ns, want %s", i, is, own)
		}
	}
}
