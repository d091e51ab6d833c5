package control

import (
	"context"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder writes Event objects to the API server. It accepts events from Start until the context of Start is done, and
// drops events at other times. It implements record.EventRecorder and is safe for concurrent use.
type Recorder struct {
	component string
	kube      kubernetes.Interface
	recorder  atomic.Pointer[record.EventRecorderLogger]

	mu sync.Mutex // guards the fields below, and writes to recorder
	// newBroadcaster creates the broadcaster and returns its recorder. It is nil while the Recorder does not
	// run.
	newBroadcaster func() record.EventRecorderLogger
	// stopBroadcaster stops the broadcaster. It is nil if there is none.
	stopBroadcaster func()
}

// NewRecorder returns a Recorder whose events have the source component, such as "deployment-controller". The caller
// calls Start.
func NewRecorder(kube kubernetes.Interface, component string) *Recorder {
	return &Recorder{component: component, kube: kube}
}

// Start makes the Recorder accept events until ctx is done. The returned function waits until it has stopped after
// that. client-go's event broadcaster, which has two queues of a thousand events, is created for the first event,
// because most controllers rarely emit events.
func (r *Recorder) Start(ctx context.Context) (wait func()) {
	done := make(chan struct{})
	r.mu.Lock()
	r.newBroadcaster = func() record.EventRecorderLogger {
		b := record.NewBroadcaster(record.WithContext(ctx))
		sink := b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events("")})
		r.stopBroadcaster = func() {
			sink.Stop()
			b.Shutdown()
		}
		return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: r.component})
	}
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		defer close(done)
		r.mu.Lock()
		end := r.stopBroadcaster
		r.newBroadcaster, r.stopBroadcaster = nil, nil
		r.recorder.Store(nil)
		r.mu.Unlock()
		if end != nil {
			end()
		}
	})
	return func() { <-done }
}

// current returns the recorder of the event broadcaster, which it creates if necessary, or nil if the Recorder does not
// accept events.
func (r *Recorder) current() record.EventRecorderLogger {
	if to := r.recorder.Load(); to != nil {
		return *to
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if to := r.recorder.Load(); to != nil {
		return *to
	}
	if r.newBroadcaster == nil {
		return nil
	}
	to := r.newBroadcaster()
	r.recorder.Store(&to)
	return to
}

// Event emits an event about obj, or discards it if r does not accept events. It implements record.EventRecorder.
func (r *Recorder) Event(obj runtime.Object, eventType, reason, message string) {
	if to := r.current(); to != nil {
		to.Event(obj, eventType, reason, message)
	}
}

// Eventf emits an event about obj, with a formatted message. It implements record.EventRecorder.
func (r *Recorder) Eventf(obj runtime.Object, eventType, reason, format string, args ...any) {
	if to := r.current(); to != nil {
		to.Eventf(obj, eventType, reason, format, args...)
	}
}

// AnnotatedEventf emits an event with annotations about obj, with a formatted message. It implements
// record.EventRecorder.
func (r *Recorder) AnnotatedEventf(obj runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	if to := r.current(); to != nil {
		to.AnnotatedEventf(obj, annotations, eventType, reason, format, args...)
	}
}
