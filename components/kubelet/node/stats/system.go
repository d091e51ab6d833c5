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

// systemPrefix is the prefix of the keys under which the CPU samples of the kubelet, the runtime and all pods are
// stored, so that they differ from the container IDs.
const systemPrefix = "system/"

// systemContainers returns the usage of the kubelet's process, the runtime's process and all pods. Usage that
// cannot be measured is omitted.
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
	if p.PodsCgroup == nil {
		return out
	}
	if s, err := p.PodsCgroup(); err == nil {
		add(statsv1alpha1.SystemContainerPods, s.CPUNanoseconds, s.MemoryUsage, s.MemoryWorkingSet, s.MemoryRSS, &s.PageFaults, &s.MajorPageFaults)
	}
	return out
}

// resident returns the memory of this process in bytes, or 0 if it is unknown.
func resident() uint64 {
	n, err := residentOf("self")
	if err != nil {
		return 0
	}
	return n
}

// residentOf returns the resident memory of a process in bytes.
func residentOf(pid string) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "statm"))
	if err != nil {
		return 0, fmt.Errorf("reading process statistics: %w", err)
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0, fmt.Errorf("reading process statistics: unexpected %q", raw)
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading process statistics: %w", err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// userHertz is the number of clock ticks per second in which /proc reports process times.
const userHertz = 100

// errNoRuntime is returned if no function for the process ID of the runtime is configured.
var errNoRuntime = errors.New("the process ID of the runtime is unknown")

// runtime returns the CPU time in nanoseconds and the resident memory in bytes of the container runtime's
// process.
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
		return 0, 0, fmt.Errorf("reading process statistics: %w", err)
	}
	// The second field, the name, may contain spaces and parentheses.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 13 {
		return 0, 0, fmt.Errorf("reading process statistics: unexpected %q", raw)
	}
	for _, text := range f[11:13] { // user and system time
		ticks, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading process statistics: %w", err)
		}
		nanos += ticks * uint64(time.Second/userHertz)
	}
	memory, err = residentOf(pid)
	return nanos, memory, err
}
