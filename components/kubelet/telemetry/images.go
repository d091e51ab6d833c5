package telemetry

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type imageMetrics struct {
	pulled                                 *prometheus.HistogramVec
	collected, asked, checked              *prometheus.CounterVec
	mountAsked, mountDone, mountImpossible prometheus.Counter
}

func (i *imageMetrics) fill(s *set) {
	i.pulled = s.histograms(prefix+"image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.",
		[]float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes")
	i.collected = s.counters(prefix+"image_garbage_collected_total", "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	i.asked = s.counters(prefix+"image_manager_ensure_image_requests_total", "[ALPHA] Number of ensure-image requests processed by the kubelet.", "pull_policy", "present_locally", "pull_required")
	i.checked = s.counters(prefix+"imagemanager_image_mustpull_checks_total", "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image", "result")
	i.mountAsked = s.counter(prefix+"image_volume_requested_total", "[BETA] Number of requested image volumes.")
	i.mountDone = s.counter(prefix+"image_volume_mounted_succeed_total", "[BETA] Number of successful image volume mounts.")
	i.mountImpossible = s.counter(prefix+"image_volume_mounted_errors_total", "[BETA] Number of failed image volume mounts.")
}

// sizes are the labels of image sizes, by lower bound.
var sizes = []struct {
	above uint64
	label string
}{
	{0, "0-10MB"}, {10 << 20, "10MB-100MB"}, {100 << 20, "100MB-500MB"}, {500 << 20, "500MB-1GB"}, {1 << 30, "1GB-5GB"}, {5 << 30, "5GB-10GB"},
	{10 << 30, "10GB-20GB"}, {20 << 30, "20GB-30GB"}, {30 << 30, "30GB-40GB"}, {40 << 30, "40GB-60GB"}, {60 << 30, "60GB-100GB"}, {100 << 30, "GT100GB"},
}

func sizeLabel(size uint64) string {
	for _, s := range slices.Backward(sizes) {
		if size > s.above {
			return s.label
		}
	}
	return "N/A"
}

// ImagePulled records a pull of an image with a size in bytes; 0 means unknown.
func (m *Metrics) ImagePulled(size uint64, took time.Duration) {
	if m != nil {
		m.images.pulled.WithLabelValues(sizeLabel(size)).Observe(took.Seconds())
	}
}

// ImageCollected counts an image that was removed because of its age or disk usage.
func (m *Metrics) ImageCollected(aged bool) {
	if m == nil {
		return
	}
	reason := "space"
	if aged {
		reason = "age"
	}
	m.images.collected.WithLabelValues(reason).Inc()
}

// ImageRequested counts a request for an image. present and pull are "true", "false" or "unknown".
func (m *Metrics) ImageRequested(policy, present, pull string) {
	if m != nil {
		m.images.asked.WithLabelValues(policy, present, pull).Inc()
	}
}

// ImageChecked counts a check whether a pod may use an image.
func (m *Metrics) ImageChecked(result string) {
	if m != nil {
		m.images.checked.WithLabelValues(result).Inc()
	}
}

// ImageVolumes counts the image volumes of a container, and failures.
func (m *Metrics) ImageVolumes(n int, err error) {
	if m == nil || n == 0 {
		return
	}
	m.images.mountAsked.Add(float64(n))
	if err != nil {
		m.images.mountImpossible.Add(float64(n))
		return
	}
	m.images.mountDone.Add(float64(n))
}
