package control

import (
	"context"
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
}

// NewRecorder makes a recorder of events whose source is component, e.g.
// "deployment-controller".
func NewRecorder(kube kubernetes.Interface, component string) *Recorder {
	return &Recorder{component: component, kube: kube}
}

// Start begins passing events on before it returns, and goes on until ctx ends;
// the returned function waits for that.
func (r *Recorder) Start(ctx context.Context) (wait func()) {
	done := make(chan struct{})
	b := record.NewBroadcaster(record.WithContext(ctx))
	sink := b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events("")})
	to := b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: r.component})
	r.to.Store(&to)
	go func() {
		defer close(done)
		<-ctx.Done()
		r.to.Store(nil)
		sink.Stop()
		b.Shutdown()
	}()
	return func() { <-done }
}

// Event records an event about obj.
func (r *Recorder) Event(obj runtime.Object, eventType, reason, message string) {
	if to := r.to.Load(); to != nil {
		(*to).Event(obj, eventType, reason, message)
	}
}

// Eventf records an event about obj.
func (r *Recorder) Eventf(obj runtime.Object, eventType, reason, format string, args ...any) {
	if to := r.to.Load(); to != nil {
		(*to).Eventf(obj, eventType, reason, format, args...)
	}
}

// AnnotatedEventf records an event with annotations about obj.
func (r *Recorder) AnnotatedEventf(obj runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	if to := r.to.Load(); to != nil {
		(*to).AnnotatedEventf(obj, annotations, eventType, reason, format, args...)
	}
}
