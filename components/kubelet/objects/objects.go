// Package objects keeps the ConfigMaps and Secrets that this node's pods refer
// to: each is watched by itself, which is all that a node is allowed to do, and
// whoever refers to one is told when it changes. Nothing is asked for twice,
// and nothing is kept that no pod refers to.
package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"hyperkube/internal/lifecycle"
	"hyperkube/internal/podrefs"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Kind of an object.
type Kind string

// The kinds kept.
const (
	ConfigMap Kind = "configmaps"
	Secret    Kind = "secrets"
)

// Ref names an object.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

// ErrNoAPI is returned for objects of a kubelet that has no API server.
var ErrNoAPI = errors.New("no API server to get it from")

// Store keeps what is referred to. Its methods are safe for several
// goroutines. Objects that it returns are shared: they must not be changed.
type Store struct {
	kube kubernetes.Interface
	log  *slog.Logger

	mu      sync.Mutex // guards what follows
	entries map[Ref]*entry
	owners  map[types.UID]map[Ref]bool
	stopped bool
	wait    sync.WaitGroup
}

type entry struct {
	cancel context.CancelFunc
	// guarded by Store.mu
	owners map[types.UID]func()
	synced chan struct{} // closed once the API has answered
	object runtime.Object
	err    error // of the last attempt, until one succeeds
}

// New makes a store. kube may be nil: then every object is ErrNoAPI.
func New(kube kubernetes.Interface, log *slog.Logger) *Store {
	return &Store{kube: kube, log: log, entries: map[Ref]*entry{}, owners: map[types.UID]map[Ref]bool{}}
}

// Close ends all watches and returns when they have ended.
func (s *Store) Close() {
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.entries {
		e.cancel()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// Refer says that owner refers to exactly refs from now on. changed is called,
// from any goroutine and never with a lock held, after one of them has
// changed; it must not block.
func (s *Store) Refer(owner types.UID, refs []Ref, changed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.kube == nil {
		return
	}
	want := map[Ref]bool{}
	for _, r := range refs {
		want[r] = true
		e := s.entries[r]
		if e == nil {
			ctx, cancel := context.WithCancel(context.Background())
			e = &entry{cancel: cancel, owners: map[types.UID]func(){}, synced: make(chan struct{})}
			s.entries[r] = e
			s.wait.Go(func() {
				s.follow(ctx, r, e)
			})
		}
		e.owners[owner] = changed
	}
	for r := range s.owners[owner] {
		if want[r] {
			continue
		}
		if e := s.entries[r]; e != nil {
			delete(e.owners, owner)
			if len(e.owners) == 0 {
				e.cancel()
				delete(s.entries, r)
			}
		}
	}
	if len(want) == 0 {
		delete(s.owners, owner)
	} else {
		s.owners[owner] = want
	}
}

// ConfigMap returns a ConfigMap that someone refers to.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	obj, err := s.get(ctx, Ref{ConfigMap, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.ConfigMap), nil
}

// Secret returns a Secret that someone refers to.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	obj, err := s.get(ctx, Ref{Secret, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Secret), nil
}

// firstAnswer bounds how long a pod waits for the first answer of the API.
const firstAnswer = 2 * time.Second

func (s *Store) get(ctx context.Context, r Ref) (runtime.Object, error) {
	if s.kube == nil {
		return nil, fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, ErrNoAPI)
	}
	s.mu.Lock()
	e := s.entries[r]
	s.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("object %q/%q not registered", r.Namespace, r.Name)
	}
	timer := time.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-e.synced:
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.object != nil:
		return e.object, nil
	case e.err != nil:
		return nil, e.err
	}
	select {
	case <-e.synced:
		return nil, apierrors.NewNotFound(v1.Resource(singular(r.Kind)), r.Name)
	default:
		return nil, fmt.Errorf("failed to sync %s cache: timed out waiting for the condition", singular(r.Kind))
	}
}

func singular(k Kind) string { return string(k[:len(k)-1]) }

// follow lists and watches one object until ctx ends.
func (s *Store) follow(ctx context.Context, r Ref, e *entry) {
	pause := 20 * time.Millisecond
	for ctx.Err() == nil {
		version, immutable, err := s.list(ctx, r, e)
		if err == nil {
			pause = 20 * time.Millisecond
			if immutable {
				<-ctx.Done()
				return
			}
			err = s.watch(ctx, r, e, version)
			if err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.log.Debug("watching an object failed", "kind", r.Kind, "namespace", r.Namespace, "name", r.Name, "error", err)
		s.mu.Lock()
		e.err = err
		s.mu.Unlock()
		lifecycle.Pause(ctx, pause+rand.N(pause))
		pause = min(2*pause, 10*time.Second)
	}
}

func (s *Store) list(ctx context.Context, r Ref, e *entry) (version string, immutable bool, err error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String()}
	var found runtime.Object
	switch r.Kind {
	case ConfigMap:
		list, err := s.kube.CoreV1().ConfigMaps(r.Namespace).List(ctx, opts)
		if err != nil {
			return "", false, err
		}
		version = list.ResourceVersion
		for i := range list.Items {
			if list.Items[i].Name == r.Name {
				found = &list.Items[i]
				immutable = ptr.Deref(list.Items[i].Immutable, false)
			}
		}
	case Secret:
		list, err := s.kube.CoreV1().Secrets(r.Namespace).List(ctx, opts)
		if err != nil {
			return "", false, err
		}
		version = list.ResourceVersion
		for i := range list.Items {
			if list.Items[i].Name == r.Name {
				found = &list.Items[i]
				immutable = ptr.Deref(list.Items[i].Immutable, false)
			}
		}
	}
	s.set(e, found)
	return version, immutable, nil
}

func (s *Store) set(e *entry, obj runtime.Object) {
	s.mu.Lock()
	changed := !same(e.object, obj)
	e.object, e.err = obj, nil
	first := false
	select {
	case <-e.synced:
	default:
		first = true
		close(e.synced)
	}
	var tell []func()
	if changed || first {
		for _, f := range e.owners {
			tell = append(tell, f)
		}
	}
	s.mu.Unlock()
	for _, f := range tell {
		if f != nil {
			f()
		}
	}
}

func same(a, b runtime.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	ma, errA := meta.Accessor(a)
	mb, errB := meta.Accessor(b)
	return errA == nil && errB == nil && ma.GetResourceVersion() == mb.GetResourceVersion() && ma.GetUID() == mb.GetUID()
}

// watch returns nil when the object is to be listed anew at once.
func (s *Store) watch(ctx context.Context, r Ref, e *entry, version string) error {
	for {
		opts := metav1.ListOptions{
			FieldSelector:       fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String(),
			ResourceVersion:     version,
			AllowWatchBookmarks: true,
		}
		var w watch.Interface
		var err error
		if r.Kind == ConfigMap {
			w, err = s.kube.CoreV1().ConfigMaps(r.Namespace).Watch(ctx, opts)
		} else {
			w, err = s.kube.CoreV1().Secrets(r.Namespace).Watch(ctx, opts)
		}
		if err != nil {
			if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
				return nil
			}
			return err
		}
		began := time.Now()
		again, err := s.events(ctx, w, e, r.Name, &version)
		w.Stop()
		if err != nil || !again {
			return err
		}
		// A server that hangs up at once is not asked in a tight loop.
		if time.Since(began) < time.Second {
			return errors.New("the watch ended at once")
		}
	}
}

func (s *Store) events(ctx context.Context, w watch.Interface, e *entry, name string, version *string) (again bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok {
				return true, nil
			}
			if ev.Type == watch.Error {
				err := apierrors.FromObject(ev.Object)
				if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
					return false, nil
				}
				return false, err
			}
			m, err := meta.Accessor(ev.Object)
			if err != nil {
				return false, err
			}
			*version = m.GetResourceVersion()
			if ev.Type == watch.Bookmark || m.GetName() != name {
				continue
			}
			if ev.Type == watch.Deleted {
				s.set(e, nil)
			} else {
				s.set(e, ev.Object)
			}
		}
	}
}

// Of returns the ConfigMaps and Secrets that a pod refers to, each once.
func Of(pod *v1.Pod) []Ref {
	seen := map[Ref]bool{}
	var out []Ref
	for kind, name := range podrefs.Of(pod) {
		r := Ref{Namespace: pod.Namespace, Name: name}
		switch kind {
		case podrefs.ConfigMap:
			r.Kind = ConfigMap
		case podrefs.Secret:
			r.Kind = Secret
		default:
			continue
		}
		if name != "" && !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	return out
}
