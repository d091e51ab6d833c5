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

// VolumePods lists the pods of the node and their volumes. Its methods must be safe for concurrent use.
type VolumePods interface {
	// Pods returns all pods of the node.
	Pods() []*v1.Pod
	// Volumes returns the volumes of a pod by name, or nil if they are not set up.
	Volumes(uid types.UID) map[string]volume.Result
}

// Volumes measures the usage of the volumes of pods on demand, for /stats/summary and metrics. Its methods
// are safe for concurrent use.
type Volumes struct {
	pods VolumePods

	mu    sync.Mutex // guards cache and serializes measurements
	cache map[types.UID]measuredVolumes
}

// NewVolumes returns a Volumes, which measures the usage of the volumes of pods.
func NewVolumes(pods VolumePods) *Volumes { return &Volumes{pods: pods} }

// measuredVolumes are the statistics of a pod's volumes and when they were measured.
type measuredVolumes struct {
	at      time.Time
	volumes []statsv1alpha1.VolumeStats
}

// All returns the statistics of the volumes of all pods whose volumes are set up. They are at most volumesTTL
// old.
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

// measureVolumes measures the volumes of a pod that are set up, which made has by volume name. It omits volumes
// that cannot be measured, and those without their own usage, such as host paths.
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

// Describe sends nothing, because the labels of the metrics depend on the pods. Prometheus then does not
// check them.
func (s *Volumes) Describe(chan<- *prometheus.Desc) {}

// Collect sends the statistics of the volumes that refer to a claim to ch, once for each claim.
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
