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

// Recorder writes events through the API while it runs, and drops them before
// and after. It is safe for several goroutines.
type Recorder struct {
	component string
	kube      kubernetes.Interface
	to        atomic.Pointer[record.EventRecorderLogger]

	mu sync.Mutex // guards the rest, and that to is set
	// begin makes what to points to; nil while the Recorder does not run.
	begin func() record.EventRecorderLogger
	// end is what ends that; nil before begin.
	end func()
}

// NewRecorder makes a recorder of events whose source is component, e.g.
// "deployment-controller".
func NewRecorder(kube kubernetes.Interface, component string) *Recorder {
	return &Recorder{component: component, kube: kube}
}

// Start begins passing events on before it returns, and goes on until ctx ends;
// the returned function waits for that. What passes them on has two queues of
// a thousand, and is made when there is something to pass: most of the controllers
// have nothing to tell for long.
func (r *Recorder) Start(ctx context.Context) (wait func()) {
	done := make(chan struct{})
	r.mu.Lock()
	r.begin = func() record.EventRecorderLogger {
		b := record.NewBroadcaster(record.WithContext(ctx))
		sink := b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events("")})
		r.end = func() {
			sink.Stop()
			b.Shutdown()
		}
		return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: r.component})
	}
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		defer close(done)
		r.mu.Lock()
		end := r.end
		r.begin, r.end = nil, nil
		r.to.Store(nil)
		r.mu.Unlock()
		if end != nil {
			end()
		}
	})
	return func() { <-done }
}

// running returns what passes events on, nil if nothing does.
func (r *Recorder) running() record.EventRecorderLogger {
	if to := r.to.Load(); to != nil {
		return *to
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if to := r.to.Load(); to != nil {
		return *to
	}
	if r.begin == nil {
		return nil
	}
	to := r.begin()
	r.to.Store(&to)
	return to
}

// Event records an event about obj.
func (r *Recorder) Event(obj runtime.Object, eventType, reason, message string) {
	if to := r.running(); to != nil {
		to.Event(obj, eventType, reason, message)
	}
}

// Eventf records an event about obj.
func (r *Recorder) Eventf(obj runtime.Object, eventType, reason, format string, args ...any) {
	if to := r.running(); to != nil {
		to.Eventf(obj, eventType, reason, format, args...)
	}
}

// AnnotatedEventf records an event with annotations about obj.
func (r *Recorder) AnnotatedEventf(obj runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	if to := r.running(); to != nil {
		to.AnnotatedEventf(obj, annotations, eventType, reason, format, args...)
	}
}
