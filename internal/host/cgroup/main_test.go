package cgroup

import (
	"os"
	"testing"

	"github.com/opencontainers/cgroups"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	// The library of BenchmarkPodOfLibrary keeps /sys/fs/cgroup open after its first use.
	if f, err := cgroups.OpenFile("/sys/fs/cgroup", "cgroup.procs", os.O_RDONLY); err == nil {
		f.Close()
	}
	leakcheck.Main(m)
}
