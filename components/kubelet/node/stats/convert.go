package stats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// swap converts the swap usage that CRI reports, or returns nil if there is none.
func swap(s *runtimeapi.SwapUsage, now time.Time) *statsv1alpha1.SwapStats {
	if s == nil || s.SwapUsageBytes == nil {
		return nil
	}
	return &statsv1alpha1.SwapStats{Time: at(s.Timestamp, now), SwapAvailableBytes: value(s.SwapAvailableBytes), SwapUsageBytes: value(s.SwapUsageBytes)}
}

// sumSwap returns the total swap usage of the containers, or nil if none is known.
func sumSwap(list []statsv1alpha1.ContainerStats, now time.Time) *statsv1alpha1.SwapStats {
	var used uint64
	known := false
	for i := range list {
		if s := list[i].Swap; s != nil && s.SwapUsageBytes != nil {
			used, known = used+*s.SwapUsageBytes, true
		}
	}
	if !known {
		return nil
	}
	return &statsv1alpha1.SwapStats{Time: metav1.NewTime(now), SwapUsageBytes: &used}
}

// memory converts the memory usage that CRI reports, or returns nil if there is none.
func memory(m *runtimeapi.MemoryUsage, now time.Time) *statsv1alpha1.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsv1alpha1.MemoryStats{
		Time: at(m.Timestamp, now), AvailableBytes: value(m.AvailableBytes), UsageBytes: value(m.UsageBytes),
		WorkingSetBytes: value(m.WorkingSetBytes), RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults),
		PSI: fromCRIPressure(m.Psi),
	}
}

// network converts the network usage that CRI reports, or returns nil if there is none.
func network(n *runtimeapi.NetworkUsage, now time.Time) *statsv1alpha1.NetworkStats {
	if n == nil {
		return nil
	}
	one := func(i *runtimeapi.NetworkInterfaceUsage) statsv1alpha1.InterfaceStats {
		return statsv1alpha1.InterfaceStats{Name: i.GetName(), RxBytes: value(i.GetRxBytes()), RxErrors: value(i.GetRxErrors()), TxBytes: value(i.GetTxBytes()), TxErrors: value(i.GetTxErrors())}
	}
	out := &statsv1alpha1.NetworkStats{Time: at(n.Timestamp, now)}
	if n.DefaultInterface != nil {
		out.InterfaceStats = one(n.DefaultInterface)
		out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	}
	for _, i := range n.Interfaces {
		// Some runtimes also list the default interface here.
		if i.GetName() == n.GetDefaultInterface().GetName() {
			continue
		}
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}

// sumCPU returns the total CPU usage of the containers; containers without a value count as zero. The current
// usage is missing if it is known for none of them.
func sumCPU(list []statsv1alpha1.ContainerStats, now time.Time) *statsv1alpha1.CPUStats {
	var total, rate uint64
	rated := false
	for i := range list {
		if c := list[i].CPU; c != nil {
			if c.UsageCoreNanoSeconds != nil {
				total += *c.UsageCoreNanoSeconds
			}
			if c.UsageNanoCores != nil {
				rate, rated = rate+*c.UsageNanoCores, true
			}
		}
	}
	out := &statsv1alpha1.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: &total}
	if rated {
		out.UsageNanoCores = &rate
	}
	return out
}

// sumMemory returns the total memory usage of the containers; containers without a value count as zero.
func sumMemory(list []statsv1alpha1.ContainerStats, now time.Time) *statsv1alpha1.MemoryStats {
	var usage, working, rss uint64
	add := func(to *uint64, v *uint64) {
		if v != nil {
			*to += *v
		}
	}
	for i := range list {
		if m := list[i].Memory; m != nil {
			add(&usage, m.UsageBytes)
			add(&working, m.WorkingSetBytes)
			add(&rss, m.RSSBytes)
		}
	}
	return &statsv1alpha1.MemoryStats{Time: metav1.NewTime(now), UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss}
}

// value converts an optional number of CRI to a pointer, which is nil if the runtime has not set the number.
func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.Value
	return &n
}

// at converts a timestamp of CRI in nanoseconds, or returns now if there is none.
func at(ns int64, now time.Time) metav1.Time {
	if ns <= 0 {
		return metav1.NewTime(now)
	}
	return metav1.NewTime(time.Unix(0, ns))
}
