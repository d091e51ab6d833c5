package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

type volumeMetrics struct {
	stored, calls *prometheus.HistogramVec
}

func (v *volumeMetrics) fill(s *set) {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	v.stored = s.histograms("storage_operation_duration_seconds", "[BETA] Storage operation duration", buckets, "volume_plugin", "operation_name", "status", "migrated")
	v.calls = s.histograms("csi_operations_seconds", "[ALPHA] Container Storage Interface operation duration with gRPC error code status total", buckets, "driver_name", "method_name", "grpc_status_code", "migrated")
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
