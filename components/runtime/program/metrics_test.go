//go:build cgo

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMetrics checks that all described metrics are measured, with the described labels.
func TestMetrics(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("measured"))
	id := n.startContainer(pod, shell("c", "echo x > /x; exec sleep 1000", func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 1024, MemoryLimitInBytes: 64 << 20}
	}))
	n.eventually("the container's program", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n.pidOf(id)))
		return err == nil && string(name) == "sleep\n"
	})
	descriptors, err := n.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]int{}
	for _, d := range descriptors.Descriptors {
		if d.Help == "" || len(d.LabelKeys) == 0 || labels[d.Name] != 0 {
			t.Errorf("bad descriptor %v", d)
		}
		labels[d.Name] = len(d.LabelKeys)
	}
	list, err := n.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil || len(list.PodMetrics) != 1 || list.PodMetrics[0].PodSandboxId != pod || len(list.PodMetrics[0].ContainerMetrics) != 1 ||
		list.PodMetrics[0].ContainerMetrics[0].ContainerId != id {
		t.Fatalf("got %v, %v", list, err)
	}
	values, scopes := map[string]uint64{}, map[string]int{}
	for _, m := range append(list.PodMetrics[0].Metrics, list.PodMetrics[0].ContainerMetrics[0].Metrics...) {
		if len(m.LabelValues) != labels[m.Name] || m.Timestamp == 0 {
			t.Errorf("%v does not fit its descriptor", m)
		}
		values[m.Name] = m.Value.Value
		if m.Name == "container_memory_failures_total" {
			scopes[m.LabelValues[len(m.LabelValues)-1]]++
		}
		if image := m.LabelValues[2]; image == "" {
			t.Errorf("%v has no image", m)
		}
		if strings.HasPrefix(m.Name, "container_fs_") {
			if device := m.LabelValues[len(m.LabelValues)-1]; len(device) > 0 && device[0] >= '1' && device[0] <= '9' {
				t.Errorf("%s is of device %q", m.Name, device)
			}
		}
	}
	if scopes["container"] != 2 || scopes["hierarchy"] != 2 {
		t.Errorf("page fault scopes are %v", scopes)
	}
	// There may have been no I/O.
	for _, name := range []string{"container_blkio_device_usage_total", "container_fs_reads_bytes_total", "container_fs_reads_total",
		"container_fs_writes_bytes_total", "container_fs_writes_total"} {
		delete(labels, name)
	}
	for name := range labels {
		if _, ok := values[name]; !ok {
			t.Errorf("%s is not measured", name)
		}
	}
	for name, want := range map[string]uint64{"container_processes": 1, "container_threads": 1, "container_spec_cpu_quota": 20000,
		"container_spec_cpu_period": 100000, "container_spec_memory_limit_bytes": 64 << 20, "container_file_descriptors": 3} {
		if values[name] != want {
			t.Errorf("%s is %d, not %d", name, values[name], want)
		}
	}
	for _, name := range []string{"container_memory_usage_bytes", "container_start_time_seconds", "container_fs_limit_bytes", "container_fs_usage_bytes",
		"container_last_seen", "container_spec_cpu_shares"} {
		if values[name] == 0 {
			t.Errorf("%s is zero", name)
		}
	}
}
