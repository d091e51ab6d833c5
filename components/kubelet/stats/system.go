package stats

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// systemContainers is what the kubelet's own process uses, and all pods.
func (p *Provider) systemContainers(now time.Time) []statsv1alpha1.ContainerStats {
	var out []statsv1alpha1.ContainerStats
	add := func(name string, nanos, usage, working, rss uint64, faults, major *uint64) {
		at := metav1.NewTime(now)
		out = append(out, statsv1alpha1.ContainerStats{
			Name: name, StartTime: metav1.NewTime(p.Boot),
			CPU:    &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: &nanos, UsageNanoCores: p.rate("system/"+name, nanos, now)},
			Memory: &statsv1alpha1.MemoryStats{Time: at, UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: faults, MajorPageFaults: major},
		})
	}
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err == nil {
		nanos := uint64(use.Utime.Nano() + use.Stime.Nano())
		minor, major := uint64(use.Minflt), uint64(use.Majflt)
		resident := resident()
		add(statsv1alpha1.SystemContainerKubelet, nanos, resident, resident, resident, &minor, &major)
	}
	if p.Whole == nil {
		return out
	}
	if s, err := p.Whole(); err == nil {
		add(statsv1alpha1.SystemContainerPods, s.CPUNanoseconds, s.MemoryUsage, s.MemoryWorkingSet, s.MemoryRSS, &s.PageFaults, &s.MajorPageFaults)
	}
	return out
}

// resident is the memory of this process, in bytes.
func resident() uint64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
