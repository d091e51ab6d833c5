// Package control is what the controllers share: the work loop, the recorder of
// events, expectations, the claiming of objects by controller references, and
// the making and choosing of pods.
//
// Everything that comes from an informer is shared with the whole process and
// is never written to here.
package control

import (
	"log/slog"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
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
	// Workers is how many objects are worked on at once; less than one means
	// five.
	Workers int
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
