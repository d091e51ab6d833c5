//go:build cgo

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bytes"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/runtimeclient"
)

func TestSuccessor(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("kept", func(c *runtimeapi.PodSandboxConfig) {
		c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8088, ContainerPort: 80}}
	}))
	gone := n.run(n.pod("gone"))
	keep := n.startContainer(pod, shell("keep", "i=0; while true; do i=$((i+1)); echo $i; test -e /tmp/end && exit 7; sleep 0.01; done"))
	quits := n.startContainer(pod, shell("quits", "while ! test -e /tmp/end; do sleep 0.01; done; exit 9"))
	tty := n.startContainer(pod, shell("tty", "read a; echo got $a; exit 6", func(c *runtimeapi.ContainerConfig) { c.Stdin, c.Tty = true, true }))
	created, err := n.create(pod, shell("created", "echo ran"))
	if err != nil {
		t.Fatal(err)
	}
	before := n.status(keep)
	verbose := func() string {
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: keep, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Info["info"]
	}
	process := verbose()
	n.eventually("some log", func() bool { return strings.Contains(n.logText(keep), "5\n") })
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		pidQuits := n.pidOf(quits)
		pidGone := n.sandboxPID(gone)
		n.stop(how)
		if how == syscall.SIGTERM {
			// These exit while no runtime is running.
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/end", pidQuits), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pidGone, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.eventually("the container's end", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pidQuits))
				return err != nil || strings.Contains(string(stat), ") Z ")
			})
			n.eventually("the sandbox's end", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pidGone))
				return err != nil || strings.Contains(string(stat), ") Z ")
			})
		}
		n.start()
		if after := n.status(keep); after.State != runtimeapi.ContainerState_CONTAINER_RUNNING || after.StartedAt != before.StartedAt || verbose() != process {
			t.Fatalf("after %s it is %v with %s", how, after, verbose())
		}
		if got, err := n.exec(keep, 60, "echo", "hi"); err != nil || string(got.Stdout) != "hi\n" {
			t.Errorf("exec: %q, %v", got.GetStdout(), err)
		}
		have := strings.Count(n.logText(keep), "\n")
		n.eventually("more log", func() bool { return strings.Count(n.logText(keep), "\n") > have })
		if save, err := exec.Command("iptables-save", "-t", "nat").CombinedOutput(); err != nil || strings.Count(string(save), "--dport 8088 ") != 1 {
			t.Errorf("host ports are %s, %v", save, err)
		}
	}
	if st := n.status(quits); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 9 && st.ExitCode != 255 {
		t.Errorf("the container that exited in the meantime is %v", st)
	}
	if st, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: gone}); err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the sandbox that ended meanwhile is %v, %v", st, err)
	}
	// The log contains every number once and in order.
	i := 0
	for line := range strings.Lines(n.logText(keep)) {
		i++
		if line != fmt.Sprintln(i) {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	// A created container can be started now, and running ones exit with their code.
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created}); err != nil {
		t.Error(err)
	}
	if n.waitExit(created); n.logText(created) != "ran\n" {
		t.Errorf("what was created logged %q", n.logText(created))
	}
	if _, err := n.exec(keep, 60, "touch", "/tmp/end"); err != nil {
		t.Error(err)
	}
	if st := n.waitExit(keep); st.ExitCode != 7 && st.ExitCode != 255 {
		t.Errorf("the adopted container exited with %v", st)
	} else {
		t.Logf("the adopted container's exit code is %d, reason %s", st.ExitCode, st.Reason)
	}
	resp, err := n.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: tty, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out, Tty: true}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "got typed") {
		t.Errorf("the adopted terminal said %q", out.String())
	}
}

func (n *node) pidOf(container string) int {
	n.t.Helper()
	resp, err := n.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(resp.Info["info"], `"pid":`)
	var pid int
	fmt.Sscan(strings.TrimRight(rest, "}"), &pid)
	if _, err := fmt.Sscanf(rest, "%d", &pid); err != nil {
		n.t.Fatal(err)
	}
	return pid
}

func (n *node) sandboxPID(id string) int {
	n.t.Helper()
	resp, err := n.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(resp.Info["info"], `"pid":`)
	var pid int
	if _, err := fmt.Sscanf(rest, "%d", &pid); err != nil {
		n.t.Fatal(err)
	}
	return pid
}

// TestKilledAtAnyInstant kills the runtime while it creates pods. The next process must adopt all
// of them, and nothing may leak.
func TestKilledAtAnyInstant(t *testing.T) {
	n := newNode(t).imported()
	for round := range 12 {
		client := n.Client
		var wait sync.WaitGroup
		for w := range 2 {
			wait.Go(func() {
				for i := range 50 {
					name := fmt.Sprintf("p-%d-%d-%d", round, w, i)
					resp, err := client.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: n.pod(name)})
					if err != nil {
						return
					}
					c, err := client.CreateContainer(context.Background(), &runtimeapi.CreateContainerRequest{PodSandboxId: resp.PodSandboxId, Config: shell("c", "sleep 1000")})
					if err != nil {
						return
					}
					if _, err := client.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
						return
					}
					if i%2 == 0 {
						if _, err := client.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: resp.PodSandboxId}); err != nil {
							return
						}
					}
				}
			})
		}
		time.Sleep(time.Duration(10+23*round) * time.Millisecond)
		if err := n.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = n.cmd.Wait()
		wait.Wait()
		client.Close()
		n.start()
		list, err := n.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				if _, err := n.exec(c.Id, 60, "true"); err != nil {
					t.Errorf("round %d: a container that runs: %v", round, err)
				}
			}
		}
	}
	// All processes must belong to an adopted pod.
	known := map[int]bool{}
	list, err := n.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			known[n.sandboxPID(s.Id)] = true
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		if err != nil || exe != n.path("root", "pause") {
			continue
		}
		var pid int
		fmt.Sscan(e.Name(), &pid)
		if !known[pid] {
			t.Errorf("process %d is an unrecorded sandbox", pid)
		}
	}
}

func TestEarlierBoot(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("old"))
	id := n.startContainer(pod, shell("c", "sleep 1000"))
	pid := n.sandboxPID(pod)
	n.stop(syscall.SIGKILL)
	// As after a reboot: no processes and mounts, records with another boot ID.
	for _, file := range []string{n.path("root/sandboxes", pod, "record.json"), n.path("root/containers", id, "record.json")} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
		data = bytes.ReplaceAll(data, bytes.TrimSpace(boot), []byte("another"))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	n.start()
	if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 255 || st.Reason != "Unknown" {
		t.Errorf("the container is %v", st)
	}
	st, err := n.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || st.Status.Network.Ip != "" {
		t.Errorf("the sandbox is %v, %v", st, err)
	}
}

// TestUnrecordedHolder verifies that the process that keeps a container's input open does not outlive the container if
// the runtime was killed before it recorded that process.
func TestUnrecordedHolder(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("holder"))
	id := n.startContainer(pod, shell("c", "cat", func(c *runtimeapi.ContainerConfig) { c.Stdin = true }))
	data, err := os.ReadFile(n.path("root/containers", id, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data[bytes.LastIndex(data, []byte(`"phase":"running"`)):]), `"holder":`)
	holder, _, _ := strings.Cut(rest, "}")
	var pid int
	if _, err := fmt.Sscanf(holder, `{"pid":%d,`, &pid); err != nil {
		t.Fatalf("no holder in %s: %v", data, err)
	}
	n.stop(syscall.SIGKILL)
	n.editRecord(id, holder, "{")
	n.editRecord(id, `"phase":"running"`, `"phase":"starting"`)
	n.start()
	n.waitExit(id)
	if !exited(pid) {
		t.Errorf("process %d still runs", pid)
	}
}

func TestUpgrade(t *testing.T) {
	n := newNode(t).imported()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pod := n.run(n.pod("upgrade"))
	id := n.startContainer(pod, shell("c", "i=0; while ! test -e /end; do i=$((i+1)); echo $i; sleep 0.01; done; exit 11"))
	if err := n.Upgrade(ctx, []string{"relative"}); err == nil {
		t.Error("a relative path was accepted")
	}
	n.replace()
	if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("it is %v", st)
	}
	if pid, err := os.ReadFile(n.path("pid")); err != nil || strings.TrimSpace(string(pid)) != fmt.Sprint(n.cmd.Process.Pid) {
		t.Errorf("the new process is %q, %v", pid, err)
	}
	if _, err := n.exec(id, 60, "touch", "/end"); err != nil {
		t.Error(err)
	}
	if st := n.waitExit(id); st.ExitCode != 11 {
		t.Errorf("it ended %v", st)
	}
	i := 0
	for line := range strings.Lines(n.logText(id)) {
		if i++; line != fmt.Sprintln(i) {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	// Wait for the network, as at every start.
	n.eventually("the pod network", func() bool {
		s, err := n.Status(ctx, &runtimeapi.StatusRequest{})
		return err == nil && s.Status.Conditions[1].Status
	})
}

// replace replaces the program by itself in the same process.
func (n *node) replace() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// The new program gets only a path, so a script sets the environment variable that makes the
	// test binary the runtime.
	script := n.path("next")
	text := fmt.Sprintf("#!/bin/sh\n%s=1 exec /proc/%d/exe \"$@\"\n", asRuntime, os.Getpid())
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		n.t.Fatal(err)
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	argv := strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")
	argv[0] = script
	if err := n.Upgrade(ctx, argv); err != nil {
		n.t.Fatal(err)
	}
}

// reconnect waits until the new program serves.
func (n *node) reconnect() {
	n.t.Helper()
	var err error
	if n.Client, err = runtimeclient.Dial(n.path("cri.sock")); err != nil {
		n.t.Fatal(err)
	}
	n.eventually("the next program", func() bool {
		s, err := n.Status(context.Background(), &runtimeapi.StatusRequest{})
		return err == nil && !slices.ContainsFunc(s.Status.Conditions, func(c *runtimeapi.RuntimeCondition) bool { return !c.Status })
	})
}
