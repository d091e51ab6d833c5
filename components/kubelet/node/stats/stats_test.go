package stats

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/internal/host/cgroup"
)

// fakeStatsRuntime is a runtime that returns statistics of one pod with one container.
type fakeStatsRuntime struct {
	runtimeapi.RuntimeServiceClient
	described bool
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func (m *fakeStatsRuntime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "box", Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:     &runtimeapi.CpuUsage{UsageCoreNanoSeconds: number(2e9)},
			Network: &runtimeapi.NetworkUsage{DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: number(7)}},
			Containers: []*runtimeapi.ContainerStats{{
				Attributes: &runtimeapi.ContainerAttributes{Id: "id", Metadata: &runtimeapi.ContainerMetadata{Name: "c"}},
				Cpu: &runtimeapi.CpuUsage{UsageCoreNanoSeconds: number(1500000000), Psi: &runtimeapi.PsiStats{
					Full: &runtimeapi.PsiData{Total: 250000000}, Some: &runtimeapi.PsiData{Total: 750000000, Avg10: 1.25}}},
				Io: &runtimeapi.IoUsage{Psi: &runtimeapi.PsiStats{}}, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: number(11)},
				Swap: &runtimeapi.SwapUsage{SwapUsageBytes: number(13)}, WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: number(17)},
			}},
		},
	}}}, nil
}

func (m *fakeStatsRuntime) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest, ...grpc.CallOption) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	if !m.described {
		return &runtimeapi.ListMetricDescriptorsResponse{}, nil
	}
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{
		{Name: cpuSeconds, Help: "Another text", LabelKeys: append([]string{}, append(containerLabels, "cpu")...)},
	}}, nil
}

func (m *fakeStatsRuntime) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	one := func(name string, labels ...string) *runtimeapi.Metric {
		return &runtimeapi.Metric{Name: name, MetricType: runtimeapi.MetricType_COUNTER, LabelValues: labels, Value: number(1), Timestamp: 1}
	}
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{{ContainerMetrics: []*runtimeapi.ContainerMetrics{{Metrics: []*runtimeapi.Metric{
		one(cpuSeconds, "c", "/g", "i", "id", "ns", "p", "total"), one("not_described", "x"), one(cpuSeconds, "too few"),
	}}}}}}, nil
}

// TestCadvisor checks that a registry accepts all metrics, and that CPU time is not truncated to
// seconds.
func TestCadvisor(t *testing.T) {
	for _, described := range []bool{true, false} {
		rt := crifake.New()
		p := &Provider{CRI: &cri.Client{Runtime: &fakeStatsRuntime{rt, described}, Images: rt}, Root: t.TempDir(), Pods: func() []*v1.Pod { return nil },
			Pressures: func() cgroup.Pressures {
				return cgroup.Pressures{Memory: &cgroup.Pressure{Some: cgroup.Stall{Total: 2500 * time.Millisecond}}}
			}}
		for name, c := range map[string]prometheus.Collector{"cadvisor": p.Cadvisor(Hardware{BootID: "boot", CPUs: 2, Kernel: "6.1", OS: "Debian"}), "resource": p.Resource()} {
			r := prometheus.NewRegistry()
			r.MustRegister(c)
			families, err := r.Gather()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var all strings.Builder
			for _, f := range families {
				for _, m := range f.Metric {
					all.WriteString(f.GetName() + " " + m.String() + "\n")
				}
			}
			want := []string{"machine_cpu_cores", `value:"boot"`, "value:1.5", "cadvisor_version_info", `"kernelVersion"`, `"6.1"`, `"Debian"`, `value:"/"`, "container_scrape_error",
				"container_pressure_cpu_stalled_seconds_total", "value:0.25", "container_pressure_cpu_waiting_seconds_total", "value:0.75",
				"container_pressure_io_waiting_seconds_total", "container_pressure_memory_waiting_seconds_total", "value:2.5"}
			if name == "resource" {
				want = []string{"container_swap_usage_bytes", "value:13", "pod_swap_usage_bytes", "container_memory_working_set_bytes", "value:11"}
			}
			for _, w := range want {
				if !strings.Contains(all.String(), w) {
					t.Errorf("%s (described: %v) has no %s:\n%s", name, described, w, all.String())
				}
			}
		}
		s, err := p.Summary(t.Context())
		if err != nil || len(s.Pods) != 1 || *s.Pods[0].Swap.SwapUsageBytes != 13 || len(s.Node.SystemContainers) != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		c := s.Pods[0].Containers[0]
		if c.CPU.PSI == nil || c.CPU.PSI.Some.Avg10 != 1.25 || c.Memory.PSI != nil || c.IO == nil || c.IO.PSI == nil || s.Node.Memory.PSI.Some.Total != 2500000000 || s.Node.IO != nil {
			t.Errorf("pressure: %+v, %+v; node %+v", c.CPU, c.IO, s.Node)
		}
		if fs := s.Pods[0].Containers[0].Rootfs; fs.CapacityBytes == nil || fs.Inodes == nil || *fs.UsedBytes != 17 || fs.InodesUsed != nil {
			t.Errorf("the root of a container uses %+v", fs)
		}
		if err := p.SetImageUsage(t.Context(), s); err != nil {
			t.Error(err) // the runtime reports no image file system
		}
		p.CRI.Images = images{}
		if err := p.SetImageUsage(t.Context(), s); err != nil || *s.Node.Runtime.ImageFs.UsedBytes != 19 || *s.Node.Runtime.ContainerFs.UsedBytes != 19 || s.Node.Runtime.ImageFs.CapacityBytes == nil {
			t.Errorf("images use %+v, %v", s.Node.Runtime.ImageFs, err)
		}
	}
}

// images is an image service that reports 19 bytes.
type images struct{ runtimeapi.ImageServiceClient }

func (images) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{UsedBytes: number(19)}}}, nil
}

// TestRateOfSystemContainers checks that the CPU usage of system containers is known from the
// second measurement.
func TestRateOfSystemContainers(t *testing.T) {
	p := &Provider{
		CRI: &cri.Client{Runtime: &fakeStatsRuntime{}}, Root: t.TempDir(), Pods: func() []*v1.Pod { return nil },
		RuntimePID: func() (int, error) { return os.Getpid(), nil },
		PodsCgroup: func() (cgroup.Stats, error) { return cgroup.Stats{CPUNanoseconds: 1}, nil },
	}
	if _, err := p.Summary(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := p.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Node.SystemContainers) != 3 {
		t.Errorf("%d system containers", len(s.Node.SystemContainers))
	}
	for _, c := range s.Node.SystemContainers {
		if c.CPU.UsageNanoCores == nil {
			t.Errorf("%s has no rate", c.Name)
		}
	}
}
