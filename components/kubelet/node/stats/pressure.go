package stats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/internal/host/cgroup"
)

// This file converts pressure stall information (PSI), if the kernel and the runtime provide it.
//
// https://kubernetes.io/docs/reference/instrumentation/understand-psi-metrics/

// fromCRIPressure converts the pressure that CRI reports. It returns nil if p is nil.
func fromCRIPressure(p *runtimeapi.PsiStats) *statsv1alpha1.PSIStats {
	if p == nil {
		return nil
	}
	one := func(d *runtimeapi.PsiData) statsv1alpha1.PSIData {
		return statsv1alpha1.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &statsv1alpha1.PSIStats{Full: one(p.GetFull()), Some: one(p.GetSome())}
}

// waits converts the I/O pressure that CRI reports, or returns nil if there is none.
func waits(io *runtimeapi.IoUsage, now time.Time) *statsv1alpha1.IOStats {
	if io == nil {
		return nil
	}
	return &statsv1alpha1.IOStats{Time: at(io.Timestamp, now), PSI: fromCRIPressure(io.Psi)}
}

// fromCgroupPressure converts the pressure of a cgroup. It returns nil if p is nil.
func fromCgroupPressure(p *cgroup.Pressure) *statsv1alpha1.PSIStats {
	if p == nil {
		return nil
	}
	one := func(s cgroup.Stall) statsv1alpha1.PSIData {
		return statsv1alpha1.PSIData{Total: uint64(s.Total), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &statsv1alpha1.PSIStats{Full: one(p.Full), Some: one(p.Some)}
}

// pressure sends the total stall times as series with cAdvisor's names. Each parameter may be nil.
func (m *mainSeries) pressure(cpu, memory, io *statsv1alpha1.PSIStats) {
	for _, of := range []struct {
		name, what string
		psi        *statsv1alpha1.PSIStats
	}{{"cpu", "CPU", cpu}, {"io", "IO", io}, {"memory", "memory", memory}} {
		if of.psi == nil {
			continue
		}
		m.put("container_pressure_"+of.name+"_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to "+of.what+" congestion.",
			prometheus.CounterValue, &of.psi.Full.Total, 1e9)
		m.put("container_pressure_"+of.name+"_waiting_seconds_total", "Total time duration tasks in the container have waited due to "+of.what+" congestion.",
			prometheus.CounterValue, &of.psi.Some.Total, 1e9)
	}
}

// pressureOf returns the pressure of CPU, memory and I/O in the statistics of a container, pod or node. Each
// parameter and result may be nil.
func pressureOf(cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats, io *statsv1alpha1.IOStats) (c, m, i *statsv1alpha1.PSIStats) {
	if cpu != nil {
		c = cpu.PSI
	}
	if memory != nil {
		m = memory.PSI
	}
	if io != nil {
		i = io.PSI
	}
	return c, m, i
}
