package objectcache

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"hyperkube/internal/testing/testwait"
)

func configMap(version, value string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "m", UID: "u", ResourceVersion: version},
		Data:       map[string]string{"key": value},
	}
}

// server returns the lists that the test provides, and reports the start and end of each watch.
type server struct {
	*fake.Clientset
	answers chan answer
	watches chan *watch.FakeWatcher
	lists   chan struct{}
}

type answer struct {
	objects []v1.ConfigMap
	err     error
}

func newServer(t *testing.T) (*server, *Store) {
	s := &server{Clientset: fake.NewClientset(), answers: make(chan answer, 10), watches: make(chan *watch.FakeWatcher, 10), lists: make(chan struct{}, 10)}
	s.PrependReactor("list", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		s.lists <- struct{}{}
		a := <-s.answers
		return true, &v1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: a.objects}, a.err
	})
	s.PrependWatchReactor("configmaps", func(k8stesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFake()
		s.watches <- w
		return true, w, nil
	})
	store := New(s.Clientset, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		close(s.answers)
		store.Close()
	})
	return s, store
}

func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: not within a minute", what)
		panic("unreachable")
	}
}

var mine = Ref{ConfigMap, "x", "m"}

func TestFollow(t *testing.T) {
	srv, store := newServer(t)
	ctx := context.Background()
	changed := make(chan struct{}, 10)
	srv.answers <- answer{objects: []v1.ConfigMap{*configMap("1", "a")}}
	store.SetReferences("pod", []Ref{mine}, func() { changed <- struct{}{} })
	within(t, changed, "the first answer")
	value := func() string {
		t.Helper()
		m, err := store.ConfigMap(ctx, "x", "m")
		if err != nil {
			t.Fatal(err)
		}
		return m.Data["key"]
	}
	if got := value(); got != "a" {
		t.Errorf("listed %q", got)
	}

	w := within(t, srv.watches, "the watch")
	w.Modify(configMap("1", "a")) // unchanged, so owners are not notified
	w.Action(watch.Bookmark, configMap("12", ""))
	other := configMap("13", "not mine")
	other.Name = "other"
	w.Modify(other)
	w.Modify(configMap("14", "b"))
	within(t, changed, "a change")
	if got := value(); got != "b" {
		t.Errorf("watched %q", got)
	}
	if len(changed) > 0 {
		t.Error("more than one notification")
	}

	w.Delete(configMap("15", "b"))
	within(t, changed, "the end")
	if _, err := store.ConfigMap(ctx, "x", "m"); !apierrors.IsNotFound(err) {
		t.Errorf("deleted object: %v", err)
	}

	// The resource version has expired, so the object is listed again.
	srv.answers <- answer{objects: []v1.ConfigMap{*configMap("20", "c")}}
	gone := apierrors.NewResourceExpired("too old").Status()
	w.Error(&gone)
	within(t, changed, "what came back")
	if got := value(); got != "c" {
		t.Errorf("listed again %q", got)
	}

	// No owner refers to the object any more.
	w = within(t, srv.watches, "the second watch")
	store.SetReferences("pod", nil, nil)
	if _, err := store.ConfigMap(ctx, "x", "m"); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("unreferenced object: %v", err)
	}
	testwait.Until(t, "the end of the watch", w.IsStopped)
}

// TestSharedByPods checks that one watch serves all owners of an object, and continues until the
// last owner is removed.
func TestSharedByPods(t *testing.T) {
	srv, store := newServer(t)
	first, second := make(chan struct{}, 10), make(chan struct{}, 10)
	srv.answers <- answer{objects: []v1.ConfigMap{*configMap("1", "a")}}
	store.SetReferences("first", []Ref{mine}, func() { first <- struct{}{} })
	within(t, first, "the first answer")
	w := within(t, srv.watches, "the watch")
	store.SetReferences("second", []Ref{mine}, func() { second <- struct{}{} })
	store.SetReferences("first", nil, nil)
	w.Modify(configMap("2", "b"))
	within(t, second, "a change")
	if len(first) > 0 {
		t.Error("notification after the reference was removed")
	}
	if len(srv.lists) != 1 || len(srv.watches) != 0 {
		t.Errorf("%d lists, %d more watches", len(srv.lists), len(srv.watches))
	}
}

// TestImmutable checks that immutable objects are not watched.
func TestImmutable(t *testing.T) {
	srv, store := newServer(t)
	m := configMap("1", "a")
	m.Immutable = new(true)
	srv.answers <- answer{objects: []v1.ConfigMap{*m}}
	changed := make(chan struct{}, 1)
	store.SetReferences("pod", []Ref{mine}, func() { changed <- struct{}{} })
	within(t, changed, "the first answer")
	store.Close()
	if len(srv.watches) > 0 {
		t.Error("object was watched")
	}
}

// TestRefused checks that a forbidden object returns the error until access is granted.
func TestRefused(t *testing.T) {
	srv, store := newServer(t)
	ctx := context.Background()
	changed := make(chan struct{}, 10)
	store.SetReferences("pod", []Ref{mine}, func() { changed <- struct{}{} })
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := store.ConfigMap(short, "x", "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("no response: %v", err)
	}
	srv.answers <- answer{err: apierrors.NewForbidden(v1.Resource("configmaps"), "m", errors.New("no"))}
	within(t, srv.lists, "the first list")
	within(t, srv.lists, "the second list")
	if _, err := store.ConfigMap(ctx, "x", "m"); !apierrors.IsForbidden(err) {
		t.Errorf("forbidden object: %v", err)
	}
	srv.answers <- answer{objects: []v1.ConfigMap{*configMap("1", "a")}}
	within(t, changed, "the answer")
	if _, err := store.ConfigMap(ctx, "x", "m"); err != nil {
		t.Error(err)
	}
}

func TestUnreferenced(t *testing.T) {
	store := New(nil, slog.New(slog.DiscardHandler))
	store.SetReferences("pod", []Ref{mine}, nil)
	if _, err := store.Secret(context.Background(), "x", "s"); !errors.Is(err, ErrNoAPI) {
		t.Errorf("without an API server: %v", err)
	}
	store.Close()

	_, store = newServer(t)
	if _, err := store.Secret(context.Background(), "x", "s"); err == nil {
		t.Error("an unreferenced object was read")
	}
}

func TestOf(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}}
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "s"}, {Name: ""}, {Name: "s"}}
	pod.Spec.Volumes = []v1.Volume{
		{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "m"}}}},
		{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
	}
	got := Of(pod)
	if len(got) != 2 || got[0] != (Ref{Secret, "x", "s"}) || got[1] != mine {
		t.Errorf("%v", got)
	}
}
