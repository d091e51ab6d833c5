// Package control is what the controllers share: the work loop, the recorder of
// events, expectations, the claiming of objects by controller references, and
// the making and choosing of pods.
//
// Everything that comes from an informer is shared with the whole process and
// is never written to here.
package control

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"hyperkube/internal/measure"
)

// Env is what each controller gets from the one who composes them.
type Env struct {
	// Kube is the API under the controller's own user.
	Kube kubernetes.Interface
	// Informers are those of the whole process. Their objects are shared.
	Informers informers.SharedInformerFactory
	// Events records events under the controller's own name.
	Events record.EventRecorder
	// Clock tells the time. Nil: the real one.
	Clock clock.PassiveClock
	// Log is never nil in a controller: take it through Defaulted.
	Log *slog.Logger
	// Metrics is where a controller's metrics go; nil: nowhere.
	Metrics prometheus.Registerer
	// Queues measures work queues; nil: nobody does.
	Queues *measure.Queues
	// Workers is how many objects are worked on at once; less than one means
	// five.
	Workers int
}

// Register shows the metrics of a controller, if they are shown at all.
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

// Defaulted returns e with what was left out filled in.
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
