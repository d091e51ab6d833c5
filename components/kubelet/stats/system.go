package stats

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// systemPrefix begins what the samples of system containers are kept by.
const systemPrefix = "system/"

// systemContainers is what the kubelet's own process uses, the runtime's, and all pods.
func (p *Provider) systemContainers(now time.Time) []statsv1alpha1.ContainerStats {
	var out []statsv1alpha1.ContainerStats
	add := func(name string, nanos, usage, working, rss uint64, faults, major *uint64) {
		at := metav1.NewTime(now)
		out = append(out, statsv1alpha1.ContainerStats{
			Name: name, StartTime: metav1.NewTime(p.Boot),
			CPU:    &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: &nanos, UsageNanoCores: p.rate(systemPrefix+name, nanos, now)},
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
	if nanos, memory, err := p.runtime(); err == nil {
		add(statsv1alpha1.SystemContainerRuntime, nanos, memory, memory, memory, nil, nil)
	}
	if p.Whole == nil {
		return out
	}
	if s, err := p.Whole(); err == nil {
		add(statsv1alpha1.SystemContainerPods, s.CPUNanoseconds, s.MemoryUsage, s.MemoryWorkingSet, s.MemoryRSS, &s.PageFaults, &s.MajorPageFaults)
	}
	return out
}

// resident is the memory of this process, in bytes; 0 if nobody knows.
func resident() uint64 {
	n, err := residentOf("self")
	if err != nil {
		return 0
	}
	return n
}

// residentOf is the memory of a process, in bytes.
func residentOf(pid string) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "statm"))
	if err != nil {
		return 0, fmt.Errorf("measuring a process: %w", err)
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0, fmt.Errorf("measuring a process: unexpected %q", raw)
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("measuring a process: %w", err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// userHertz is the unit of the times of processes, on every architecture that Go
// knows.
const userHertz = 100

// errNoRuntime says that nobody knows which process is the runtime's.
var errNoRuntime = errors.New("which process is the runtime's is not known")

// runtime is what the container runtime's process uses.
func (p *Provider) runtime() (nanos, memory uint64, err error) {
	if p.RuntimePID == nil {
		return 0, 0, errNoRuntime
	}
	n, err := p.RuntimePID()
	if err != nil {
		return 0, 0, err
	}
	pid := strconv.Itoa(n)
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, 0, fmt.Errorf("measuring a process: %w", err)
	}
	// The name, which comes second, may have spaces and brackets.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 13 {
		return 0, 0, fmt.Errorf("measuring a process: unexpected %q", raw)
	}
	for _, text := range f[11:13] { // in user mode, and in the kernel
		ticks, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("measuring a process: %w", err)
		}
		nanos += ticks * uint64(time.Second/userHertz)
	}
	memory, err = residentOf(pid)
	return nanos, memory, err
}
