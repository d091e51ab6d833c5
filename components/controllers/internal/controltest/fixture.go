// Package controltest contains helpers for the tests of controllers: a fake API server that sets
// UIDs, names, timestamps and generations like the real one, and access to the writes it received.
package controltest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"hyperkube/components/controllers/internal/control"
)

// Now is the initial time of Fixture.Clock.
var Now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// Fixture is a fake API server and informers for the test of a controller. The informers do not run: the test adds
// objects to their caches.
type Fixture struct {
	t      *testing.T
	Kube   *fake.Clientset
	Env    control.Env
	Clock  *clocktesting.FakePassiveClock
	Events *record.FakeRecorder
}

var counter atomic.Int64

// New returns a Fixture whose API server and informers contain objs.
func New(t *testing.T, objs ...runtime.Object) *Fixture {
	t.Helper()
	kube := fake.NewClientset()
	Complete(kube)
	f := &Fixture{
		t:      t,
		Kube:   kube,
		Clock:  clocktesting.NewFakePassiveClock(Now),
		Events: record.NewFakeRecorder(1000),
	}
	f.Env = control.Env{
		Kube:      kube,
		Informers: informers.NewSharedInformerFactory(kube, 0),
		Events:    f.Events,
		Clock:     f.Clock,
	}.Defaulted()
	for _, o := range objs {
		f.Add(o)
	}
	return f
}

// Complete makes a fake API server set UID, name, timestamp and generation of created objects, as the real one does.
func Complete(kube *fake.Clientset) {
	kube.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || action.GetSubresource() != "" {
			return false, nil, nil
		}
		m, err := meta.Accessor(create.GetObject())
		if err != nil {
			return false, nil, nil
		}
		n := counter.Add(1)
		if m.GetUID() == "" {
			m.SetUID(types.UID(fmt.Sprintf("uid-%d", n)))
		}
		if m.GetName() == "" && m.GetGenerateName() != "" {
			m.SetName(fmt.Sprintf("%s%05d", m.GetGenerateName(), n))
		}
		if created := m.GetCreationTimestamp(); created.IsZero() {
			m.SetCreationTimestamp(metav1.NewTime(Now))
		}
		if m.GetGeneration() == 0 {
			m.SetGeneration(1)
		}
		return false, nil, nil
	})
}

// Add adds an object to the API server and to the informer of its kind.
func (f *Fixture) Add(o runtime.Object) {
	f.t.Helper()
	if err := f.Kube.Tracker().Add(o.DeepCopyObject()); err != nil {
		f.t.Fatal(err)
	}
	f.Cache(o)
}

// Cache adds an object only to the informer of its kind.
func (f *Fixture) Cache(o runtime.Object) {
	f.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		f.t.Fatal(err)
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	if kinds[0].Kind == "Endpoints" {
		gvr.Resource = "endpoints"
	}
	i, err := f.Env.Informers.ForResource(gvr)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := i.Informer().GetIndexer().Add(o); err != nil {
		f.t.Fatal(err)
	}
}

// Writes returns the write requests since the last call, such as "patch pods/status NAME".
func (f *Fixture) Writes() []string {
	var out []string
	for _, a := range f.Kube.Actions() {
		switch a.GetVerb() {
		case "get", "list", "watch":
			continue
		}
		s := a.GetVerb() + " " + a.GetResource().Resource
		if a.GetSubresource() != "" {
			s += "/" + a.GetSubresource()
		}
		switch a := a.(type) {
		case clienttesting.DeleteAction:
			s += " " + a.GetName()
		case clienttesting.PatchAction:
			s += " " + a.GetName()
		}
		out = append(out, s)
	}
	f.Kube.ClearActions()
	return out
}

// Recorded returns the events that the controller has emitted since the last call.
func (f *Fixture) Recorded() []string {
	var out []string
	for {
		select {
		case e := <-f.Events.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

// Count returns the number of strings that begin with prefix.
func Count(list []string, prefix string) (n int) {
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// Sync adds key to the controller's queue, and syncs it and all other keys in the queue in the calling goroutine. It
// returns the first error.
func Sync(t *testing.T, l *control.Loop, key string) error {
	t.Helper()
	l.Add(key)
	return l.Drain(context.Background())
}

// Pod returns a pod with a phase. A running pod is ready.
func Pod(namespace, name string, labels map[string]string, phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels, CreationTimestamp: metav1.NewTime(Now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: phase},
	}
	if phase == corev1.PodRunning {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(Now.Add(-time.Minute))}}
	}
	return p
}

// Observe replaces the objects of these kinds in the informers by those in the API server, as if the informers had
// received all events.
func (f *Fixture) Observe(kinds ...schema.GroupVersionKind) {
	f.t.Helper()
	for _, kind := range kinds {
		gvr, _ := meta.UnsafeGuessKindToResource(kind)
		list, err := f.Kube.Tracker().List(gvr, kind, "")
		if err != nil {
			f.t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			f.t.Fatal(err)
		}
		var objs []any
		for _, i := range items {
			objs = append(objs, i)
		}
		i, err := f.Env.Informers.ForResource(gvr)
		if err != nil {
			f.t.Fatal(err)
		}
		if err := i.Informer().GetIndexer().Replace(objs, ""); err != nil {
			f.t.Fatal(err)
		}
	}
}

// Pods returns the pods in the API server, by name.
func (f *Fixture) Pods(namespace string) map[string]*corev1.Pod {
	f.t.Helper()
	list, err := f.Kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]*corev1.Pod{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

// SetPod updates the phase and readiness of a pod in the API server, as a kubelet does, and its other fields to those
// of p.
func (f *Fixture) SetPod(p *corev1.Pod, phase corev1.PodPhase, ready bool) {
	f.t.Helper()
	next := p.DeepCopy()
	next.Status.Phase = phase
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	next.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(Now.Add(-time.Minute))}}
	if _, err := f.Kube.CoreV1().Pods(p.Namespace).Update(context.Background(), next, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}
