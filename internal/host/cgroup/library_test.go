package cgroup

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

// These benchmarks compare this package with github.com/opencontainers/cgroups, which the container
// runtime uses through libcontainer. docs/development/node.md has the figures.

// benchmarkPod creates, limits, measures and removes the cgroup of a pod, as the kubelet does, with one
// function for each step.
func benchmarkPod(b *testing.B, create func(name string) error, stats func(name string) error, remove func(name string) error) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("/hyperkube-bench-%d-%d", os.Getpid(), i)
		for _, step := range []func(string) error{create, stats, remove} {
			if err := step(name); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkPod(b *testing.B) {
	m, err := Open()
	if err != nil {
		b.Skip(err)
	}
	benchmarkPod(b,
		func(name string) error {
			return m.Create(name, Resources{CPUShares: 100, CPUQuota: 50_000, CPUPeriod: 100_000, MemoryLimit: 64 << 20, PidsLimit: 4096})
		},
		func(name string) error { _, err := m.Stats(name); return err },
		func(name string) error { return m.Remove(context.Background(), name) })
}

func BenchmarkPodOfLibrary(b *testing.B) {
	config := func(name string) *cgroups.Cgroup {
		pids := int64(4096)
		return &cgroups.Cgroup{Path: name, Resources: &cgroups.Resources{
			CpuShares: 100, CpuQuota: 50_000, CpuPeriod: 100_000, Memory: 64 << 20, PidsLimit: &pids, SkipDevices: true,
		}}
	}
	var current cgroups.Manager
	benchmarkPod(b,
		func(name string) (err error) {
			c := config(name)
			if current, err = manager.New(c); err != nil {
				return err
			}
			if err := current.Apply(-1); err != nil {
				return err
			}
			return current.Set(c.Resources)
		},
		func(string) error { _, err := current.GetStats(); return err },
		func(string) error { return current.Destroy() })
}
