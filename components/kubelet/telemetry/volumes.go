package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// Volumes measures operations on volumes. Its methods are safe for concurrent use. On a nil receiver they do nothing.
type Volumes struct{ stored, calls *prometheus.HistogramVec }

func (m *Volumes) fill(s *set) {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	m.stored = s.histograms("storage_operation_duration_seconds", "[BETA] Storage operation duration", buckets, "volume_plugin", "operation_name", "status", "migrated")
	m.calls = s.histograms("csi_operations_seconds", "[ALPHA] Container Storage Interface operation duration with gRPC error code status total", buckets, "driver_name", "method_name", "grpc_status_code", "migrated")
}

// podVolumeMetrics count the volumes of pods that are found when the kubelet starts.
type podVolumeMetrics struct{ rebuilt, rebuiltErrors, swept, sweptErrors prometheus.Counter }

func (m *podVolumeMetrics) fill(s *set) {
	m.rebuilt = s.counter("reconstruct_volume_operations_total", "[ALPHA] The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction attempts.")
	m.rebuiltErrors = s.counter("reconstruct_volume_operations_errors_total", "[ALPHA] The number of volumes that failed reconstruction from the operating system during kubelet startup.")
	m.swept = s.counter("force_cleaned_failed_volume_operations_total", "[ALPHA] The number of volumes that were force cleaned after their reconstruction failed during kubelet startup. This includes both successful and failed cleanups.")
	m.sweptErrors = s.counter("force_cleaned_failed_volume_operation_errors_total", "[ALPHA] The number of volumes that failed force cleanup after their reconstruction failed during kubelet startup.")
}

// VolumesFound records the volumes found on disk when the kubelet started, and the pods whose
// volumes could not be read.
func (m *Metrics) VolumesFound(n, failed int) {
	if m != nil {
		m.podVolumes.rebuilt.Add(float64(n + failed))
		m.podVolumes.rebuiltErrors.Add(float64(failed))
	}
}

// OrphanVolumesCleaned records the cleanup of the volumes of an orphaned pod.
func (m *Metrics) OrphanVolumesCleaned(n int, err error) {
	if m == nil {
		return
	}
	m.podVolumes.swept.Add(float64(n))
	if err != nil {
		m.podVolumes.sweptErrors.Add(float64(n))
	}
}

// VolumeOperation records a volume operation with upstream's names, such as "volume_mount" of
// "kubernetes.io/secret".
func (m *Volumes) VolumeOperation(plugin, operation string, took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.stored.WithLabelValues(plugin, operation, result, "false").Observe(took.Seconds())
}

// DriverCall records a call to a volume driver. method is the full name of the method.
func (m *Volumes) DriverCall(driver, method string, took time.Duration, err error) {
	if m != nil {
		m.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
	}
}
