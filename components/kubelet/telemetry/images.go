package telemetry

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Images has the metrics of pulls and of the garbage collection of images. Its methods are safe for
// concurrent use. On a nil receiver they do nothing.
type Images struct {
	pulled                    *prometheus.HistogramVec
	collected, asked, checked *prometheus.CounterVec
}

func (m *Images) fill(s *set) {
	m.pulled = s.histograms(prefix+"image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.",
		[]float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes")
	m.collected = s.counters(prefix+"image_garbage_collected_total", "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	m.asked = s.counters(prefix+"image_manager_ensure_image_requests_total", "[ALPHA] Number of ensure-image requests processed by the kubelet.", "pull_policy", "present_locally", "pull_required")
	m.checked = s.counters(prefix+"imagemanager_image_mustpull_checks_total", "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image", "result")
}

// imageVolumeMetrics count the image volumes of containers and their failures.
type imageVolumeMetrics struct{ requested, mounted, failed prometheus.Counter }

func (m *imageVolumeMetrics) fill(s *set) {
	m.requested = s.counter(prefix+"image_volume_requested_total", "[BETA] Number of requested image volumes.")
	m.mounted = s.counter(prefix+"image_volume_mounted_succeed_total", "[BETA] Number of successful image volume mounts.")
	m.failed = s.counter(prefix+"image_volume_mounted_errors_total", "[BETA] Number of failed image volume mounts.")
}

// sizes are the labels of image sizes by their lower bound in bytes.
var sizes = []struct {
	above uint64
	label string
}{
	{0, "0-10MB"}, {10 << 20, "10MB-100MB"}, {100 << 20, "100MB-500MB"}, {500 << 20, "500MB-1GB"}, {1 << 30, "1GB-5GB"}, {5 << 30, "5GB-10GB"},
	{10 << 30, "10GB-20GB"}, {20 << 30, "20GB-30GB"}, {30 << 30, "30GB-40GB"}, {40 << 30, "40GB-60GB"}, {60 << 30, "60GB-100GB"}, {100 << 30, "GT100GB"},
}

// sizeLabel returns the label of an image size in bytes, or "N/A" for 0.
func sizeLabel(size uint64) string {
	for _, s := range slices.Backward(sizes) {
		if size > s.above {
			return s.label
		}
	}
	return "N/A"
}

// ImagePulled records the duration of a successful pull of an image with a size in bytes; 0 means unknown.
func (m *Images) ImagePulled(size uint64, took time.Duration) {
	if m != nil {
		m.pulled.WithLabelValues(sizeLabel(size)).Observe(took.Seconds())
	}
}

// ImageCollected counts an image that the garbage collection has removed: because of its age, or otherwise
// because of disk usage.
func (m *Images) ImageCollected(aged bool) {
	if m == nil {
		return
	}
	reason := "space"
	if aged {
		reason = "age"
	}
	m.collected.WithLabelValues(reason).Inc()
}

// ImageRequested counts a request for an image by a container. policy is the pull policy. present, whether
// the image was present, and pull, whether it had to be pulled, are "true", "false" or "unknown".
func (m *Images) ImageRequested(policy, present, pull string) {
	if m != nil {
		m.asked.WithLabelValues(policy, present, pull).Inc()
	}
}

// ImageChecked counts a check whether a pod may use an image that is present. result is the label of the
// outcome.
func (m *Images) ImageChecked(result string) {
	if m != nil {
		m.checked.WithLabelValues(result).Inc()
	}
}

// ImageVolumes counts the n image volumes of a container whose start had the result err.
func (m *Metrics) ImageVolumes(n int, err error) {
	if m == nil || n == 0 {
		return
	}
	m.imageVolumes.requested.Add(float64(n))
	if err != nil {
		m.imageVolumes.failed.Add(float64(n))
		return
	}
	m.imageVolumes.mounted.Add(float64(n))
}
