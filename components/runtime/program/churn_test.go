//go:build cgo

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	churnRounds = flag.Int("churn-rounds", 8, "how often TestChurn kills or replaces the runtime")
	churnSeed   = flag.Uint64("churn-seed", 0, "random seed of TestChurn; 0 uses the current time")
)

// TestChurn kills or replaces the runtime at random times while containers are created, started,
// executed, stopped and removed. Running containers must not be disturbed, no log line may be lost,
// observed exit codes must be correct, and nothing may be left behind.
func TestChurn(t *testing.T) {
	seed := *churnSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("the seed is %d", seed)
	n := newNode(t).imported()
	steady := n.run(n.pod("steady"))
	counter := n.startContainer(steady, shell("counter", "i=0; while ! test -e /end; do i=$((i+1)); echo $i; sleep 0.003; done; exit 42"))
	pid := n.pidOf(counter)
	for round := range *churnRounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		client := n.Client
		var wait sync.WaitGroup
		for w := range 3 {
			worker := rand.New(rand.NewPCG(seed, uint64(round*3+w)<<32|1))
			wait.Go(func() { n.churn(client, worker, fmt.Sprintf("r%d-w%d", round, w)) })
		}
		time.Sleep(time.Duration(5+random.IntN(300)) * time.Millisecond)
		if random.IntN(4) == 0 {
			// Replacement: calls in flight fail too, but the process stays.
			n.replace()
			client.Close()
			wait.Wait()
			n.reconnect()
		} else {
			if err := n.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = n.cmd.Wait()
			wait.Wait()
			client.Close()
			n.start()
		}
		if st := n.status(counter); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || n.pidOf(counter) != pid {
			t.Fatalf("round %d: the container that should keep running is %v", round, st)
		}
		if out, err := n.exec(counter, 60, "echo", "there"); err != nil || string(out.Stdout) != "there\n" {
			t.Errorf("round %d: exec: %v, %v", round, out, err)
		}
		list, err := n.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Containers {
			st := n.status(c.Id)
			switch st.State {
			case runtimeapi.ContainerState_CONTAINER_RUNNING:
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", n.pidOf(c.Id))); err != nil {
					t.Errorf("round %d: %s runs without a process", round, c.Metadata.Name)
				}
			case runtimeapi.ContainerState_CONTAINER_EXITED:
				// 3 is the container's own exit code, 137 means killed, 255 not observed, 128
				// failed to start, 2 stopped before its program was executed, and 130 stopped while
				// not PID 1 of its namespace.
				if !slices.Contains([]int32{2, 3, 128, 130, 137, 255}, st.ExitCode) {
					t.Errorf("round %d: %s ended %v", round, c.Metadata.Name, st)
				}
				if st.FinishedAt == 0 || st.Reason == "" {
					t.Errorf("round %d: %s ended without %v", round, c.Metadata.Name, st)
				}
			}
		}
		if round%10 == 9 {
			n.removePods(steady) // the address range is small
		}
	}
	n.removePods(steady)
	if pids := n.processes(); len(pids) == 0 {
		t.Error("no process of the running container was found")
	}
	if _, err := n.exec(counter, 60, "touch", "/end"); err != nil {
		t.Error(err)
	}
	if st := n.waitExit(counter); st.ExitCode != 42 && st.ExitCode != 255 {
		t.Errorf("it ended %v", st)
	} else {
		t.Logf("the exit code of who ran all the time is %d", st.ExitCode)
	}
	i := 0
	for line := range strings.Lines(n.logText(counter)) {
		if i++; line != fmt.Sprintln(i) {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	n.removePods("")
	n.eventually("processes of pods to be gone", func() bool { return len(n.processes()) == 0 })
}

// removePods removes all pods except one.
func (n *node) removePods(but string) {
	n.t.Helper()
	pods, err := n.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Id == but {
			continue
		}
		if _, err := n.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
			n.t.Error(err)
		}
	}
}

// churn creates and removes up to 100 pods, until the runtime is stopped or a call fails.
func (n *node) churn(client runtimeapi.RuntimeServiceClient, random *rand.Rand, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for i := range 100 {
		pod, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod(fmt.Sprintf("%s-%d", name, i), func(c *runtimeapi.PodSandboxConfig) {
			switch random.IntN(4) {
			case 0:
				c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			case 1:
				inUserNS(65536 * 9)(c)
			}
		})})
		if err != nil {
			return
		}
		config := shell("c", []string{"sleep 1000", "exit 3", "sleep 0.02; exit 3", "trap '' TERM INT; while true; do echo line; sleep 0.01; done"}[random.IntN(4)],
			func(c *runtimeapi.ContainerConfig) { c.Stdin, c.Tty = random.IntN(3) == 0, random.IntN(3) == 0 })
		c, err := client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, Config: config})
		if err != nil {
			return
		}
		if random.IntN(6) > 0 {
			if _, err := client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
				return
			}
		}
		if random.IntN(2) == 0 {
			_, _ = client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ContainerId, Cmd: []string{"sleep", "0.02"}, Timeout: 5})
		}
		switch random.IntN(4) {
		case 0:
			_, err = client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ContainerId, Timeout: int64(random.IntN(2))})
		case 1:
			_, err = client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ContainerId})
		case 2:
			_, err = client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.PodSandboxId})
		}
		if err != nil {
			return
		}
		if random.IntN(3) > 0 {
			if _, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.PodSandboxId}); err != nil {
				return
			}
		}
	}
}

// processes returns the processes in the cgroups of this node's pods.
func (n *node) processes() (pids []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		text, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err == nil && strings.Contains(string(text), n.cgroup+"/") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
