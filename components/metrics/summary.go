package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// summary has the fields of a kubelet's response to /stats/summary that this package needs.
//
// https://kubernetes.io/docs/reference/instrumentation/node-metrics/
type summary struct {
	Node struct {
		usageStats
		Fs *filesystemStats `json:"fs"`
	} `json:"node"`
	Pods []podStats `json:"pods"`
}

// usageStats is the usage of a node, pod or container. Parts that the kubelet does not measure are nil.
type usageStats struct {
	CPU     *cpuStats     `json:"cpu"`
	Memory  *memoryStats  `json:"memory"`
	Network *networkStats `json:"network"`
}

// cpuStats is CPU time since the start of the container or node.
type cpuStats struct {
	// Time is when the kubelet measured, with the resolution of a second. correct changes it.
	Time                 time.Time `json:"time"`
	UsageCoreNanoSeconds *float64  `json:"usageCoreNanoSeconds"`
}

// memoryStats is the working set in bytes.
type memoryStats struct {
	WorkingSetBytes *float64 `json:"workingSetBytes"`
}

// networkStats is the traffic of the default interface in bytes since its creation.
type networkStats struct {
	RxBytes *float64 `json:"rxBytes"`
	TxBytes *float64 `json:"txBytes"`
}

// filesystemStats is the size of a file system or volume in bytes.
type filesystemStats struct {
	CapacityBytes *float64 `json:"capacityBytes"`
	UsedBytes     *float64 `json:"usedBytes"`
}

// reference refers to an object in a namespace.
type reference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// podStats is the usage of a pod with its containers and volumes.
type podStats struct {
	PodRef reference `json:"podRef"`
	usageStats
	Containers []containerStats `json:"containers"`
	Volumes    []volumeStats    `json:"volume"`
}

// containerStats is the usage of a container.
type containerStats struct {
	Name string `json:"name"`
	usageStats
}

// volumeStats is the usage of a volume. PVCRef is nil if the volume does not belong to a claim.
type volumeStats struct {
	PVCRef *reference `json:"pvcRef"`
	filesystemStats
}

// maxSummary is the maximum size of a response of a kubelet in bytes.
const maxSummary = 64 << 20

// readSummary reads a response to /stats/summary. begin and end are the times of the request and of the response.
func readSummary(body io.Reader, begin, end time.Time) (*summary, error) {
	out := &summary{}
	if err := json.NewDecoder(io.LimitReader(body, maxSummary)).Decode(out); err != nil {
		return nil, fmt.Errorf("parsing summary: %w", err)
	}
	correct := func(u *usageStats) {
		if u.CPU != nil {
			u.CPU.Time = correctTime(u.CPU.Time, begin, end)
		}
	}
	correct(&out.Node.usageStats)
	for i := range out.Pods {
		correct(&out.Pods[i].usageStats)
		for j := range out.Pods[i].Containers {
			correct(&out.Pods[i].Containers[j].usageStats)
		}
	}
	return out, nil
}

// correctTime returns the time at which a kubelet measured, for the time that it reported. The reported time has a resolution
// of a second, which is not enough for rates over short times. Kubelets that measure during the request report a time
// between begin and end, and begin is then more exact. Other kubelets report when they measured last.
func correctTime(reported, begin, end time.Time) time.Time {
	if reported.IsZero() || !reported.Before(begin.Truncate(time.Second)) && !reported.After(end) {
		return begin
	}
	return reported
}

// sample returns the CPU time and memory of u as a sample.
func (u *usageStats) sample() *sample {
	out := &sample{}
	if u.CPU != nil {
		out.at = u.CPU.Time
		if u.CPU.UsageCoreNanoSeconds != nil {
			out.cpu, out.cpuKnown = *u.CPU.UsageCoreNanoSeconds/1e9, true
		}
	}
	if u.Memory != nil && u.Memory.WorkingSetBytes != nil {
		out.memory, out.memoryKnown = *u.Memory.WorkingSetBytes, true
	}
	return out
}

// values returns the CPU time in seconds, memory, received and transmitted bytes of u, and when they were measured: now if
// the kubelet did not report it. Unknown values are NaN.
func (u *usageStats) values(now time.Time) ([]float64, time.Time) {
	out := []float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	if u.CPU != nil {
		now = u.CPU.Time
		out[0] = valueOf(u.CPU.UsageCoreNanoSeconds) / 1e9
	}
	if u.Memory != nil {
		out[1] = valueOf(u.Memory.WorkingSetBytes)
	}
	if u.Network != nil {
		out[2], out[3] = valueOf(u.Network.RxBytes), valueOf(u.Network.TxBytes)
	}
	return out, now
}

// valueOf returns *v, or NaN if v is nil.
func valueOf(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
