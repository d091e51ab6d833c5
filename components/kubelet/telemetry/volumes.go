package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// Volumes has the metrics of operations on volumes and of calls to CSI drivers. Its methods are safe for
// concurrent use. On a nil receiver they do nothing.
type Volumes struct{ stored, calls *prometheus.HistogramVec }

func (m *Volumes) fill(s *set) {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	m.stored = s.histograms("storage_operation_duration_seconds", "[BETA] Storage operation duration", buckets, "volume_plugin", "operation_name", "status", "migrated")
	m.calls = s.histograms("csi_operations_seconds", "[ALPHA] Container Storage Interface operation duration with gRPC error code status total", buckets, "driver_name", "method_name", "grpc_status_code", "migrated")
}

// podVolumeMetrics count the volumes of pods that are found on disk when the kubelet starts.
type podVolumeMetrics struct{ rebuilt, rebuiltErrors, swept, sweptErrors prometheus.Counter }

func (m *podVolumeMetrics) fill(s *set) {
	m.rebuilt = s.counter("reconstruct_volume_operations_total", "[ALPHA] The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction attempts.")
	m.rebuiltErrors = s.counter("reconstruct_volume_operations_errors_total", "[ALPHA] The number of volumes that failed reconstruction from the operating system during kubelet startup.")
	m.swept = s.counter("force_cleaned_failed_volume_operations_total", "[ALPHA] The number of volumes that were force cleaned after their reconstruction failed during kubelet startup. This includes both successful and failed cleanups.")
	m.sweptErrors = s.counter("force_cleaned_failed_volume_operation_errors_total", "[ALPHA] The number of volumes that failed force cleanup after their reconstruction failed during kubelet startup.")
}

// VolumesFound counts the n volumes of a pod that were found on disk when the kubelet started. failed is 1 if
// the volumes of the pod could not be read, otherwise 0.
func (m *Metrics) VolumesFound(n, failed int) {
	if m != nil {
		m.podVolumes.rebuilt.Add(float64(n + failed))
		m.podVolumes.rebuiltErrors.Add(float64(failed))
	}
}

// OrphanVolumesCleaned counts the n volumes of an orphaned pod that were torn down when the kubelet started.
// err is the result.
func (m *Metrics) OrphanVolumesCleaned(n int, err error) {
	if m == nil {
		return
	}
	m.podVolumes.swept.Add(float64(n))
	if err != nil {
		m.podVolumes.sweptErrors.Add(float64(n))
	}
}

// VolumeOperation records the duration and the result of an operation on a volume. plugin and operation have
// upstream's names, such as "kubernetes.io/secret" and "volume_mount".
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

// DriverCall records the duration and the result of a call to a CSI driver. method is the full name of the
// gRPC method.
func (m *Volumes) DriverCall(driver, method string, took time.Duration, err error) {
	if m != nil {
		m.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
	}
}
