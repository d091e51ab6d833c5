//go:build cgo

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestHostilePods runs containers that exhaust resources. A container next to them must keep
// working, and each of them must be stoppable.
func TestHostilePods(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("hostile"))
	neighbour := n.startContainer(pod, shell("neighbour", "sleep 1000"))
	served := func(what string) {
		t.Helper()
		if out, err := n.exec(neighbour, 30, "echo", "here"); err != nil || string(out.Stdout) != "here\n" {
			t.Errorf("beside %s a neighbour says %v, %v", what, out, err)
		}
	}
	limit := func(memory int64) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) {
			if c.Linux == nil {
				c.Linux = &runtimeapi.LinuxContainerConfig{}
			}
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: memory}
		}
	}
	end := func(id string) {
		t.Helper()
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}

	// The write rate of logs is limited.
	flood := n.startContainer(pod, shell("flood", "yes"))
	log := func() int64 {
		info, err := os.Stat(n.status(flood).LogPath)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	n.eventually("a flood of logs", func() bool { return log() > 17<<20 })
	began, before := time.Now(), log() // the time spans everything that is counted
	served("a flood of logs")
	time.Sleep(time.Second)
	if grown, most := log()-before, int64((time.Since(began).Seconds()+1)*8)<<20; grown > most {
		t.Errorf("in %s the log has grown by %d MiB", time.Since(began), grown>>20)
	}
	// After rotation, output continues in the new file.
	path := n.status(flood).LogPath
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: flood}); err != nil {
		t.Error(err)
	}
	n.eventually("the new log", func() bool { return log() > 0 })
	end(flood)

	// Exceed the memory limit.
	hog := n.startContainer(pod, shell("hog", "exec tail /dev/zero", limit(32<<20)))
	if st := n.waitExit(hog); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("the container that exceeds its memory limit exited with %v", st)
	}
	served("a hog of memory")
	end(hog)

	// A fork bomb is limited by memory and must be killed as a whole.
	bomb := n.startContainer(pod, shell("bomb", "b() { b | b & }; b; sleep 1000", limit(64<<20)))
	time.Sleep(200 * time.Millisecond)
	served("a fork bomb")
	end(bomb)

	// /dev/shm belongs to the pod and has a limited size.
	if out := n.output(pod, shell("shm", "dd if=/dev/zero of=/dev/shm/x bs=1M count=100 2>&1 | grep -o 'No space left on device'; rm /dev/shm/x")); out != "No space left on device\n" {
		t.Errorf("a write to the full /dev/shm returned %q", out)
	}

	// A large environment, and one that exceeds the kernel's limit.
	many := func(count, size int) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) {
			for i := range count {
				c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: fmt.Sprint("V", i), Value: bytes.Repeat([]byte("x"), size)})
			}
		}
	}
	if out := n.output(pod, shell("env", "env | grep -c '^V'", many(10000, 20))); out != "10000\n" {
		t.Errorf("of 10000 variables there are %q", out)
	}
	id, err := n.create(pod, shell("huge", "true", many(1, 1<<20)))
	if err == nil {
		_, err = n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	}
	if err != nil {
		t.Error(err)
	} else if st := n.waitExit(id); st.ExitCode == 0 {
		t.Errorf("with a variable of 1 MiB it ended %v", st)
	}
	served("large environments")

	// Hundreds of concurrent execs, and one with too much output.
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			if out, err := n.exec(neighbour, 60, "echo", fmt.Sprint(i)); err != nil || string(out.Stdout) != fmt.Sprintln(i) {
				t.Errorf("one of many commands: %v, %v", out, err)
			}
		})
	}
	wait.Wait()
	if out, err := n.exec(neighbour, 60, "dd", "if=/dev/zero", "bs=1M", "count=20"); err != nil || len(out.Stdout) == 0 || len(out.Stdout) > 7<<20 || bytes.ContainsFunc(out.Stdout, func(r rune) bool { return r != 0 }) {
		t.Errorf("an exec with 20 MiB of output returned %d bytes: %v", len(out.GetStdout()), err)
	}
	served("a flood of commands")
}

// TestManyPods starts with the records of a thousand exited pods.
func TestManyPods(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("first"))
	id := n.startContainer(pod, shell("c", "true"))
	n.waitExit(id)
	if _, err := n.StopPodSandbox(context.Background(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	n.stop(15)
	const count = 1000
	read := func(dir, id string) string {
		data, err := os.ReadFile(n.path("root", dir, id, "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	sandbox, container := read("sandboxes", pod), read("containers", id)
	write := func(dir, id, text string) {
		if err := os.MkdirAll(n.path("root", dir, id), 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.path("root", dir, id, "record.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		newPod, newID := fmt.Sprintf("%064x", i+1), fmt.Sprintf("%064x", i+1+count)
		write("sandboxes", newPod, strings.ReplaceAll(sandbox, pod, newPod))
		write("containers", newID, strings.NewReplacer(pod, newPod, id, newID).Replace(container))
	}
	began := time.Now()
	n.start()
	took := time.Since(began)
	list, err := n.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(list.Containers) != count+1 {
		t.Fatalf("%d containers are known, %v", len(list.GetContainers()), err)
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "RssAnon") {
			t.Logf("ready after %s with %s", took.Round(time.Millisecond), strings.Join(strings.Fields(line), " "))
		}
	}
	n.removePods("")
}
