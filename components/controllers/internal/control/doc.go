// Package control contains what the controllers share: the work loop, the event recorder,
// expectations, the adoption and release of objects by controller references, and the creation and
// deletion of pods.
//
// Objects from informers are shared with the whole process and are read-only.
package control

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"hyperkube/internal/serving/componentmetrics"
)

// Env contains the dependencies that every controller has. Each controller gets its own copy.
type Env struct {
	// Kube is the API client, which authenticates as the controller's user.
	Kube kubernetes.Interface
	// Informers are shared by the whole process, and so are their objects.
	Informers informers.SharedInformerFactory
	// Events records events with the controller's name as source.
	Events record.EventRecorder
	// Clock returns the current time. If nil, the real clock is used.
	Clock clock.PassiveClock
	// Log is never nil after Defaulted.
	Log *slog.Logger
	// Metrics registers the controller's metrics. If nil, they are not registered.
	Metrics prometheus.Registerer
	// Queues records metrics of work queues. If nil, there are none.
	Queues *componentmetrics.Queues
	// Tracer starts the spans of Traced. If nil, there are none.
	Tracer trace.Tracer
	// Workers is the number of concurrent syncs; values below one mean five.
	Workers int
}

// Register registers the metrics of a controller with e.Metrics. It does nothing if e.Metrics is nil.
func (e Env) Register(all ...prometheus.Collector) error {
	if e.Metrics == nil {
		return nil
	}
	for _, c := range all {
		if err := e.Metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// Defaulted returns e with defaults for unset fields. Without an event recorder, events are discarded.
func (e Env) Defaulted() Env {
	if e.Clock == nil {
		e.Clock = clock.RealClock{}
	}
	if e.Log == nil {
		e.Log = slog.New(slog.DiscardHandler)
	}
	if e.Workers < 1 {
		e.Workers = 5
	}
	if e.Events == nil {
		e.Events = &record.FakeRecorder{}
	}
	return e
}
