package metrics

import (
	"math"
	"time"

	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/metrics/history"
	"hyperkube/internal/serving/metricshistory"
)

// recorder stores the usage in the summaries of kubelets in the history. It is safe for concurrent use.
type recorder struct {
	store *history.Store
	pods  corelisters.PodLister
	// controlPlane is the control plane of this process, which runs on the node nodeName. It is nil if this process has none.
	controlPlane ControlPlane
	nodeName     string
}

// record stores the usage of a node, its pods and their claims as samples of the time now.
func (r *recorder) record(now time.Time, node string, s *summary) {
	values, at := s.Node.values(now)
	if s.Node.Fs != nil {
		values = append(values, valueOf(s.Node.Fs.UsedBytes), valueOf(s.Node.Fs.CapacityBytes))
	} else {
		values = append(values, math.NaN(), math.NaN())
	}
	r.store.Record(now, history.Key{Resource: metricshistory.Nodes, Name: node}, at, values)
	for i := range s.Pods {
		pod := &s.Pods[i]
		values, at := pod.values(now)
		values = append(values, r.restarts(pod.PodRef))
		r.store.Record(now, history.Key{Resource: metricshistory.Pods, Namespace: pod.PodRef.Namespace, Name: pod.PodRef.Name}, at, values)
		for j := range pod.Volumes {
			v := &pod.Volumes[j]
			if v.PVCRef == nil {
				continue
			}
			key := history.Key{Resource: metricshistory.Volumes, Namespace: v.PVCRef.Namespace, Name: v.PVCRef.Name}
			r.store.Record(now, key, now, []float64{valueOf(v.UsedBytes), valueOf(v.CapacityBytes)})
		}
	}
}

// restarts returns the number of restarts of all containers of a pod, or NaN if the pod is not in the cache.
func (r *recorder) restarts(ref reference) float64 {
	pod, err := r.pods.Pods(ref.Namespace).Get(ref.Name)
	if err != nil {
		return math.NaN()
	}
	restarts := int32(0)
	for i := range pod.Status.InitContainerStatuses {
		restarts += pod.Status.InitContainerStatuses[i].RestartCount
	}
	for i := range pod.Status.ContainerStatuses {
		restarts += pod.Status.ContainerStatuses[i].RestartCount
	}
	return float64(restarts)
}
