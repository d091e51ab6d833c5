package control

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// TestRecorder: events are written while the recorder runs, and the recorder stops without delay if
// there were none.
func TestRecorder(t *testing.T) {
	written := make(chan string, 10)
	kube := fake.NewClientset()
	kube.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		written <- e.Reason + " of " + e.InvolvedObject.Name + " by " + e.Source.Component
		return true, e, nil
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	r := NewRecorder(kube, "test")
	r.Event(pod, corev1.EventTypeNormal, "Early", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := r.Start(ctx)
	if r.recorder.Load() != nil {
		t.Error("a broadcaster exists before the first event")
	}
	r.Event(pod, corev1.EventTypeNormal, "First", "")
	r.Eventf(pod, corev1.EventTypeNormal, "Second", "%d", 2)
	for _, want := range []string{"First of p by test", "Second of p by test"} {
		if got := <-written; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	cancel()
	wait()
	r.Event(pod, corev1.EventTypeNormal, "Late", "")
	if r.recorder.Load() != nil || r.stopBroadcaster != nil {
		t.Error("the broadcaster still exists")
	}
	// Start again, as after another leader election, and stop without events.
	ctx, cancel = context.WithCancel(t.Context())
	wait = r.Start(ctx)
	cancel()
	wait()
	select {
	case e := <-written:
		t.Errorf("%q was written", e)
	default:
	}
}

// TestFirstEvents: concurrent first events create only one broadcaster, and no event is lost.
func TestFirstEvents(t *testing.T) {
	const many = 20 // less than the library's limit of events per object
	written := make(chan struct{}, many)
	kube := fake.NewClientset()
	kube.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		written <- struct{}{}
		return true, a.(clienttesting.CreateAction).GetObject(), nil
	})
	r := NewRecorder(kube, "test")
	ctx, cancel := context.WithCancel(t.Context())
	wait := r.Start(ctx)
	made, begin := 0, r.newBroadcaster
	r.newBroadcaster = func() record.EventRecorderLogger {
		made++
		return begin()
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range many {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}}
		all.Go(func() {
			<-start
			r.Event(pod, corev1.EventTypeNormal, "First", "")
		})
	}
	close(start)
	all.Wait()
	for range many {
		<-written
	}
	cancel()
	wait()
	if made != 1 {
		t.Errorf("%d broadcasters", made)
	}
}
