package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leakRoundsEnv is the number of rounds of TestLeaks, 2 by default.
const leakRoundsEnv = "HYPERKUBE_E2E_LEAK_ROUNDS"

// leakPods is the number of pods in a round of TestLeaks.
const leakPods = 20

// holds contains the resources of a process that could leak.
type holds struct {
	files, threads, goroutines int
	anonymous                  int // in KiB
}

// TestLeaks creates and deletes pods with volumes, and kills clients with open streams of all
// kinds. Nothing may leak in the kernel or in the processes.
func TestLeaks(t *testing.T) {
	t.Parallel()
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv(leakRoundsEnv)); err == nil {
		rounds = n
	}
	c := newChurn(t, 10*time.Minute+time.Duration(rounds)*2*time.Minute, 1, func(a *alone) []string {
		a.frugal = true
		file := filepath.Join(a.dir, "kubelet.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration"+lowDiskConfig), 0o644); err != nil {
			t.Fatal(err)
		}
		return []string{"--kubelet-config=" + file}
	})
	if err := c.create(c.steady(0)); err != nil {
		t.Fatal(err)
	}
	c.settled("", nil)
	census, rules := c.leftovers(), c.ruleCount()
	// The first round creates what is allocated on first use.
	c.vanish(0)
	before := c.holds()
	settled := before // after some rounds
	for round := 1; round <= rounds; round++ {
		c.vanish(round)
		if t.Failed() {
			return
		}
		if round%20 == 0 {
			now := c.holds()
			if t.Logf("round %d: %+v", round, now); round == 20 {
				settled = now
			}
		}
	}
	c.again(func() error {
		if diff := census.diff(c.leftovers()); diff != "" {
			return errors.New(diff)
		}
		if now := c.ruleCount(); now != rules {
			return fmt.Errorf("iptables rules before: %d, after: %d", rules, now)
		}
		return nil
	})
	var after map[string]holds
	c.again(func() error {
		after = c.holds()
		for name, was := range before {
			// Some are temporary: probes, and connections between components.
			if is := after[name]; is.files > was.files+8 || is.goroutines > was.goroutines+25 {
				return fmt.Errorf("%s before: %+v, after: %+v", name, was, is)
			}
			if was := settled[name]; rounds >= 60 && after[name].anonymous > was.anonymous*5/4+16<<10 {
				return fmt.Errorf("%s after 20 rounds: %+v, now: %+v", name, was, after[name])
			}
		}
		return nil
	})
	t.Logf("after %d rounds:\nbefore %+v\nafter  %+v", rounds, before, after)
}

// vanish runs one round.
func (c *churn) vanish(round int) {
	c.t.Helper()
	for i := range leakPods {
		p := c.shell(fmt.Sprintf("leak-%d-%d", round, i), c.names[0], "echo line; sleep 100000")
		c.volumes(p)
		if i%5 == 0 {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(21000 + i)}}
		}
		if err := c.create(p); err != nil {
			c.t.Fatal(err)
		}
	}
	first := fmt.Sprintf("leak-%d-0", round)
	watching, vanish := context.WithCancel(c.ctx)
	for range 10 {
		if w, err := c.kube.CoreV1().Pods("").Watch(watching, metav1.ListOptions{}); err == nil {
			defer w.Stop()
		}
	}
	c.settled(first, nil)
	// Kill each of these clients during its stream, some before it.
	for i, words := range [][]string{
		{"exec", "-i", first, "--", "sh", "-c", "while :; do echo e; sleep 0.1; done"}, {"exec", first, "--", "sleep", "1000"}, {"logs", "-f", first},
		{"port-forward", "pod/" + first, "0:80"}, {"attach", "-i", first}, {"get", "pods", "-w"},
	} {
		cmd := c.command(c.binary, append([]string{"kubectl"}, words...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			c.t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = in.Close()
			_ = cmd.Wait()
		}()
		if i == round%6 {
			_ = cmd.Process.Kill()
		}
	}
	for i := range leakPods {
		c.settled(fmt.Sprintf("leak-%d-%d", round, i), nil)
	}
	vanish()
	c.again(func() error {
		return c.kube.CoreV1().Pods("default").DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "churn=leak"})
	})
	c.emptied()
}

// holds returns the resources of the node's process and of the runtime.
func (c *churn) holds() map[string]holds {
	c.t.Helper()
	out := map[string]holds{}
	for _, name := range []string{"hyperkube", "runtime"} {
		dir := fmt.Sprintf("/proc/%d", c.pidFile(c.nodes[0].PIDFile(name)))
		var h holds
		files, err := os.ReadDir(dir + "/fd")
		threads, threadErr := os.ReadDir(dir + "/task")
		memory, memoryErr := os.ReadFile(dir + "/smaps_rollup")
		if err := errors.Join(err, threadErr, memoryErr); err != nil {
			c.t.Fatal(err)
		}
		h.files, h.threads = len(files), len(threads)
		for line := range strings.Lines(string(memory)) {
			if fields := strings.Fields(line); fields[0] == "Anonymous:" {
				h.anonymous, _ = strconv.Atoi(fields[1])
			}
		}
		if name == "hyperkube" {
			text, err := c.kube.Discovery().RESTClient().Get().AbsPath("/debug/pprof/goroutine").Param("debug", "1").DoRaw(c.ctx)
			if err != nil {
				c.t.Fatal(err)
			}
			if _, err := fmt.Sscanf(string(text), "goroutine profile: total %d", &h.goroutines); err != nil {
				c.t.Fatalf("%v: %.100s", err, text)
			}
		}
		out[name] = h
	}
	return out
}

// ruleCount returns the number of iptables rules.
func (c *churn) ruleCount() int {
	c.t.Helper()
	return strings.Count(c.sh("iptables-save; ip6tables-save"), "\n-A ")
}
