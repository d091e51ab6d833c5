package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

type volumeMetrics struct {
	stored, calls *prometheus.HistogramVec

	rebuilt, rebuiltErrors, swept, sweptErrors prometheus.Counter
}

func (v *volumeMetrics) fill(s *set) {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	v.stored = s.histograms("storage_operation_duration_seconds", "[BETA] Storage operation duration", buckets, "volume_plugin", "operation_name", "status", "migrated")
	v.calls = s.histograms("csi_operations_seconds", "[ALPHA] Container Storage Interface operation duration with gRPC error code status total", buckets, "driver_name", "method_name", "grpc_status_code", "migrated")
	v.rebuilt = s.counter("reconstruct_volume_operations_total", "[ALPHA] The number of volumes that were found on the disk when the kubelet started.")
	v.rebuiltErrors = s.counter("reconstruct_volume_operations_errors_total", "[ALPHA] The number of pods whose volumes on the disk could not be looked at when the kubelet started.")
	v.swept = s.counter("force_cleaned_failed_volume_operations_total", "[ALPHA] The number of volumes of pods that nobody wants any more that were to be cleaned when the kubelet started.")
	v.sweptErrors = s.counter("force_cleaned_failed_volume_operation_errors_total", "[ALPHA] The number of those that could not be cleaned at the first attempt.")
}

// VolumesFound counts volumes that were on the disk when the kubelet started, and pods
// whose volumes could not be looked at.
func (m *Metrics) VolumesFound(n, failed int) {
	if m != nil {
		m.volumes.rebuilt.Add(float64(n + failed))
		m.volumes.rebuiltErrors.Add(float64(failed))
	}
}

// VolumesSwept counts the volumes of one pod that nobody wants, and whether they could
// be cleaned.
func (m *Metrics) VolumesSwept(n int, err error) {
	if m == nil {
		return
	}
	m.volumes.swept.Add(float64(n))
	if err != nil {
		m.volumes.sweptErrors.Add(float64(n))
	}
}

// Stored notes an operation on a volume, in upstream's words: "volume_mount" of
// "kubernetes.io/secret", say.
func (m *Metrics) Stored(plugin, operation string, took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.volumes.stored.WithLabelValues(plugin, operation, result, "false").Observe(took.Seconds())
}

// Called notes a call of a driver of volumes, by the method's whole name.
func (m *Metrics) Called(driver, method string, took time.Duration, err error) {
	if m != nil {
		m.volumes.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
	}
}
