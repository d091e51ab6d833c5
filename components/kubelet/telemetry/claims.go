package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Claims has the metrics of operations on ResourceClaims and of calls to their drivers. Its methods are safe
// for concurrent use. On a nil receiver they do nothing.
type Claims struct{ claims, claimCalls *prometheus.HistogramVec }

func (m *Claims) fill(s *set) {
	claimBuckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	m.claims = s.histograms("dra_operations_duration_seconds", "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.", claimBuckets, "operation_name", "is_error")
	m.claimCalls = s.histograms("dra_grpc_operations_duration_seconds", "[ALPHA] Duration in seconds of the DRA gRPC operations", claimBuckets, "driver_name", "method_name", "grpc_status_code")
}

// Operation records the duration and the result of the operation "PrepareResources" or "UnprepareResources"
// on the claims of a pod.
func (m *Claims) Operation(operation string, took time.Duration, err error) {
	if m != nil {
		m.claims.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
	}
}

// ClaimCall records the duration of a call to a DRA driver. code is the gRPC code of the result.
func (m *Claims) ClaimCall(driver, method, code string, took time.Duration) {
	if m != nil {
		m.claimCalls.WithLabelValues(driver, method, code).Observe(took.Seconds())
	}
}
