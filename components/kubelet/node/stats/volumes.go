package stats

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/api/podrefs"
)

// volumesTTL is how long a measurement of a pod's volumes is cached: it reads files and calls
// drivers.
const volumesTTL = time.Minute

// VolumePods finds the volumes of pods. Its methods must be safe for concurrent use.
type VolumePods interface {
	// Pods returns all pods of the node.
	Pods() []*v1.Pod
	// Volumes returns the volumes of a pod by name.
	Volumes(uid types.UID) map[string]volume.Result
}

// Volumes measures the volumes of pods on demand. Its methods are safe for concurrent use.
type Volumes struct {
	pods VolumePods

	mu    sync.Mutex // guards cache and serializes measurements
	cache map[types.UID]measuredVolumes
}

// NewVolumes creates Volumes of the pods that pods returns.
func NewVolumes(pods VolumePods) *Volumes { return &Volumes{pods: pods} }

type measuredVolumes struct {
	at      time.Time
	volumes []statsv1alpha1.VolumeStats
}

// All returns the statistics of the volumes of all pods.
func (s *Volumes) All(ctx context.Context) map[types.UID][]statsv1alpha1.VolumeStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	fresh := map[types.UID]measuredVolumes{}
	out := map[types.UID][]statsv1alpha1.VolumeStats{}
	for _, pod := range s.pods.Pods() {
		made := s.pods.Volumes(pod.UID)
		if len(made) == 0 {
			continue
		}
		m, ok := s.cache[pod.UID]
		if !ok || now.Sub(m.at) >= volumesTTL {
			m = measuredVolumes{at: now, volumes: measureVolumes(ctx, pod, made, now)}
		}
		fresh[pod.UID], out[pod.UID] = m, m.volumes
	}
	s.cache = fresh
	return out
}

func measureVolumes(ctx context.Context, pod *v1.Pod, made map[string]volume.Result, now time.Time) []statsv1alpha1.VolumeStats {
	var out []statsv1alpha1.VolumeStats
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		r, ok := made[v.Name]
		if !ok {
			continue
		}
		one := statsv1alpha1.VolumeStats{Name: v.Name, FsStats: statsv1alpha1.FsStats{Time: metav1.NewTime(now)}}
		switch {
		case r.Measure != nil:
			u, err := r.Measure(ctx)
			if err != nil {
				continue
			}
			one.CapacityBytes, one.AvailableBytes, one.UsedBytes = u.Capacity, u.Available, u.Used
			one.Inodes, one.InodesFree, one.InodesUsed = u.Inodes, u.InodesFree, u.InodesUsed
		case r.Path == "" || v.HostPath != nil || v.CSI != nil:
			continue
		default:
			fs := FileSystem(r.Path, now)
			if fs == nil {
				continue
			}
			one.FsStats = *fs
			if !r.Persistent {
				// The capacity is that of the node's file system, the usage that of the volume's
				// files.
				used, inodes := DiskUsage(r.Path)
				one.UsedBytes, one.InodesUsed = &used, &inodes
			}
		}
		if name := podrefs.ClaimName(pod, v); name != "" {
			one.PVCRef = &statsv1alpha1.PVCReference{Name: name, Namespace: pod.Namespace}
		}
		out = append(out, one)
	}
	return out
}

// Describe implements prometheus.Collector. It sends nothing because the metrics are not known in
// advance.
func (s *Volumes) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It sends the metrics of volumes by claim, each claim
// once.
func (s *Volumes) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	labels := []string{"namespace", "persistentvolumeclaim"}
	seen := map[statsv1alpha1.PVCReference]bool{}
	for _, list := range s.All(ctx) {
		for i := range list {
			v := &list[i]
			if v.PVCRef == nil || seen[*v.PVCRef] {
				continue
			}
			seen[*v.PVCRef] = true
			put := func(name, help string, value *uint64) {
				if value != nil {
					ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("kubelet_volume_stats_"+name, help, labels, nil), prometheus.GaugeValue, float64(*value), v.PVCRef.Namespace, v.PVCRef.Name)
				}
			}
			put("capacity_bytes", "Capacity in bytes of the volume", v.CapacityBytes)
			put("available_bytes", "Number of available bytes in the volume", v.AvailableBytes)
			put("used_bytes", "Number of used bytes in the volume", v.UsedBytes)
			put("inodes", "Maximum number of inodes in the volume", v.Inodes)
			put("inodes_free", "Number of free inodes in the volume", v.InodesFree)
			put("inodes_used", "Number of used inodes in the volume", v.InodesUsed)
		}
	}
}
