//go:build cgo

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// profiles are the seccomp profiles of the benchmarks.
var profiles = map[string]runtimeapi.SecurityProfile_ProfileType{
	"RuntimeDefault": runtimeapi.SecurityProfile_RuntimeDefault, "Unconfined": runtimeapi.SecurityProfile_Unconfined}

// withProfile configures a seccomp profile.
func withProfile(kind runtimeapi.SecurityProfile_ProfileType) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind}
	}
}

// BenchmarkContainer measures the latency of creating, starting, exec and removing a container, as
// seen by the client.
func BenchmarkContainer(b *testing.B) {
	for name, kind := range profiles {
		b.Run(name, func(b *testing.B) { benchmarkContainer(b, kind) })
	}
}

func benchmarkContainer(b *testing.B, profile runtimeapi.SecurityProfile_ProfileType) {
	n := newNode(b).imported()
	ctx := context.Background()
	pod := n.run(n.pod("bench"))
	var times [4]time.Duration
	i := 0
	before := n.cpu()
	for b.Loop() {
		i++
		begin := time.Now()
		lap := func(k int) {
			times[k] += time.Since(begin)
			begin = time.Now()
		}
		id, err := n.create(pod, shell(fmt.Sprint("c", i), "exec sleep 1000", withProfile(profile)))
		if err != nil {
			b.Fatal(err)
		}
		lap(0)
		if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			b.Fatal(err)
		}
		lap(1)
		if _, err := n.exec(id, 10, "true"); err != nil {
			b.Fatal(err)
		}
		lap(2)
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			b.Fatal(err)
		}
		lap(3)
	}
	for k, name := range []string{"create-ms", "start-ms", "exec-ms", "remove-ms"} {
		b.ReportMetric(float64(times[k].Microseconds())/1000/float64(i), name)
	}
	// CPU time is less affected by other load on the machine.
	b.ReportMetric(10*float64(n.cpu()-before)/float64(i), "cpu-ms")
	b.ReportMetric(0, "ns/op")
}

// cpu returns the CPU time of the runtime and its exited children, in hundredths of a second.
func (n *node) cpu() (ticks int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	text := string(data)
	for _, field := range strings.Fields(text[strings.LastIndexByte(text, ')')+1:])[11:15] {
		t, err := strconv.Atoi(field)
		if err != nil {
			n.t.Fatal(err)
		}
		ticks += t
	}
	return ticks
}

// BenchmarkSandbox measures the latency of creating a sandbox, without other load and while many
// other sandboxes are being removed.
func BenchmarkSandbox(b *testing.B) {
	const others = 50
	n := newNode(b).imported()
	ctx := context.Background()
	var calm, removing, removal time.Duration
	i := 0
	run := func(name string) (string, time.Duration) {
		begin := time.Now()
		id := n.run(n.pod(name))
		return id, time.Since(begin)
	}
	for b.Loop() {
		i++
		ids := make([]string, others)
		for k := range ids {
			ids[k], _ = run(fmt.Sprintf("other-%d-%d", i, k))
			n.startContainer(ids[k], shell("c", "exec sleep 1000"))
		}
		id, took := run(fmt.Sprintf("calm-%d", i))
		calm += took
		ids = append(ids, id)
		var wait sync.WaitGroup
		begin := time.Now()
		for _, id := range ids {
			wait.Go(func() {
				if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
					b.Error(err)
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		id, took = run(fmt.Sprintf("late-%d", i))
		removing += took
		wait.Wait()
		removal += time.Since(begin)
		if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			b.Fatal(err)
		}
	}
	for name, sum := range map[string]time.Duration{"calm-ms": calm, "while-removing-ms": removing, "removal-of-51-ms": removal} {
		b.ReportMetric(float64(sum.Microseconds())/1000/float64(i), name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStart measures the latency of creating and starting a container. It reports median and
// minimum, which are less affected by other load than the mean.
func BenchmarkStart(b *testing.B) {
	for name, kind := range profiles {
		b.Run(name, func(b *testing.B) { benchmarkStart(b, kind) })
	}
}

func benchmarkStart(b *testing.B, profile runtimeapi.SecurityProfile_ProfileType) {
	n := newNode(b).imported()
	ctx := context.Background()
	pod := n.run(n.pod("bench"))
	var took, cpu []time.Duration
	var last string
	for b.Loop() {
		before := time.Duration(n.cpu()) * 10 * time.Millisecond
		begin := time.Now()
		id, err := n.create(pod, shell(fmt.Sprint("c", len(took)), "exec sleep 1000", withProfile(profile)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
		used := time.Duration(n.cpu())*10*time.Millisecond - before
		// The init process was started by the runtime and includes the pre-start.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", n.pidOf(id)))
		if err != nil {
			b.Fatal(err)
		}
		var first time.Duration
		if _, err := fmt.Sscan(string(stat), &first); err != nil {
			b.Fatal(err)
		}
		cpu = append(cpu, used+first)
		if last != "" {
			if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: last}); err != nil {
				b.Fatal(err)
			}
		}
		last = id
	}
	slices.Sort(took)
	for name, at := range map[string]int{"least-ms": 0, "p25-ms": len(took) / 4, "p50-ms": len(took) / 2, "p90-ms": len(took) * 9 / 10} {
		b.ReportMetric(float64(took[at].Microseconds())/1000, name)
	}
	var sum time.Duration
	for _, c := range cpu {
		sum += c
	}
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(len(cpu)), "cpu-ms")
	b.ReportMetric(0, "ns/op")
}
