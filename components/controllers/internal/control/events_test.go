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

// TestRecorder: events pass while it runs, and nothing waits for them before there
// are any.
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
	if r.to.Load() != nil {
		t.Error("there is something that passes events on before there are any")
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
	if r.to.Load() != nil || r.end != nil {
		t.Error("events are still passed on")
	}
	// Once more, as after another election; it ends without any.
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

// TestFirstEvents: of what passes events on there is one, however many are first,
// and none of theirs is lost.
func TestFirstEvents(t *testing.T) {
	const many = 20 // fewer than the library lets an object have at once
	written := make(chan struct{}, many)
	kube := fake.NewClientset()
	kube.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		written <- struct{}{}
		return true, a.(clienttesting.CreateAction).GetObject(), nil
	})
	r := NewRecorder(kube, "test")
	ctx, cancel := context.WithCancel(t.Context())
	wait := r.Start(ctx)
	made, begin := 0, r.begin
	r.begin = func() record.EventRecorderLogger {
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
		t.Errorf("%d pass events on", made)
	}
}
