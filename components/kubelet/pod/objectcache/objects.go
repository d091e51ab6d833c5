// Package objectcache caches the ConfigMaps and Secrets that this node's pods refer to. Each object has
// its own watch, because the node authorizer allows nothing else. Pods are notified when an object
// changes. Objects are shared between pods, and removed when no pod refers to them.
package objectcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/base/backoff"

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

// Kind is the kind of an object in the Store, ConfigMap or Secret, by its resource name in the API, such as
// "configmaps".
type Kind string

// ConfigMap and Secret are the kinds of objects that a Store caches, named like their resources in the API.
const (
	ConfigMap Kind = "configmaps"
	Secret    Kind = "secrets"
)

// Ref identifies a ConfigMap or Secret.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

// ErrNoAPI is the error for any object if the kubelet runs without an API server.
var ErrNoAPI = errors.New("no API server is configured")

// Store caches the ConfigMaps and Secrets that pods refer to, and watches each of them. Its methods are safe
// for concurrent use. Returned objects are shared and must not be modified.
type Store struct {
	kube kubernetes.Interface
	log  *slog.Logger

	mu      sync.Mutex // guards the following fields
	entries map[Ref]*entry
	// owners has the references of each pod, by pod UID.
	owners  map[types.UID]map[Ref]bool
	stopped bool
	wait    sync.WaitGroup
}

// entry is one object of the Store and its watch. cancel stops the watch.
type entry struct {
	cancel context.CancelFunc
	// owners are the pods that refer to the object, and the functions to call after a change.
	owners map[types.UID]func()
	synced chan struct{} // closed after the first successful list
	// object is nil if the object does not exist or was not listed yet.
	object runtime.Object
	err    error // last error; nil after a success
}

// New returns a Store without objects. If kube is nil, all objects are unavailable with ErrNoAPI.
func New(kube kubernetes.Interface, log *slog.Logger) *Store {
	return &Store{kube: kube, log: log, entries: map[Ref]*entry{}, owners: map[types.UID]map[Ref]bool{}}
}

// Close stops all watches and waits until they have returned. After that, SetReferences has no effect.
func (s *Store) Close() {
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.entries {
		e.cancel()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// SetReferences replaces the references of a pod, whose UID is owner, by refs. New objects are watched; objects
// without references are removed. changed is called after one of the objects was listed or has changed, from
// any goroutine and without locks held. It must not block. Without an API server SetReferences does nothing.
func (s *Store) SetReferences(owner types.UID, refs []Ref, changed func()) {
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
				s.listAndWatch(ctx, r, e)
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

// ConfigMap returns a ConfigMap that a pod refers to by SetReferences. It waits up to syncTimeout until the
// ConfigMap was listed. It returns an API error NotFound if the ConfigMap does not exist.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	obj, err := s.get(ctx, Ref{ConfigMap, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.ConfigMap), nil
}

// Secret returns a Secret that a pod refers to by SetReferences. It waits up to syncTimeout until the Secret
// was listed. It returns an API error NotFound if the Secret does not exist.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	obj, err := s.get(ctx, Ref{Secret, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Secret), nil
}

// syncTimeout is how long a request for an object waits until the object was listed for the first time.
const syncTimeout = 2 * time.Second

// get returns the object r as described for ConfigMap. After a failed watch it returns the last known object,
// or the error if there is none.
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
	timer := time.NewTimer(syncTimeout)
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

// singular returns the kind for messages, such as "secret".
func singular(k Kind) string { return string(k[:len(k)-1]) }

// listAndWatch keeps the entry e up to date until ctx is done. Errors are retried with a back-off. An
// immutable object is listed only once.
func (s *Store) listAndWatch(ctx context.Context, r Ref, e *entry) {
	retry := backoff.Backoff{First: 20 * time.Millisecond, Max: 10 * time.Second, Jitter: 1}
	for ctx.Err() == nil {
		version, immutable, err := s.list(ctx, r, e)
		if err == nil {
			retry.Reset()
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
		s.log.Debug("listing or watching ConfigMap or Secret of a pod failed; running pods keep its last known content, and pods without it cannot start, until a retry succeeds, retrying with back-off", "kind", r.Kind, "namespace", r.Namespace, "name", r.Name, "err", err)
		s.mu.Lock()
		e.err = err
		s.mu.Unlock()
		retry.Pause(ctx)
	}
}

// list lists the object and stores it in e, or stores that it does not exist. version is the resource version from
// which to watch. immutable is true for an immutable ConfigMap or Secret, which need not be watched.
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

// set stores a new state of the object, or nil if it does not exist, and notifies the pods if it has changed
// or was listed for the first time.
func (s *Store) set(e *entry, obj runtime.Object) {
	s.mu.Lock()
	changed := !sameVersion(e.object, obj)
	e.object, e.err = obj, nil
	first := false
	select {
	case <-e.synced:
	default:
		first = true
		close(e.synced)
	}
	var callbacks []func()
	if changed || first {
		for _, f := range e.owners {
			callbacks = append(callbacks, f)
		}
	}
	s.mu.Unlock()
	for _, f := range callbacks {
		if f != nil {
			f()
		}
	}
}

// sameVersion reports whether a and b are the same version of an object; either may be nil.
func sameVersion(a, b runtime.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	ma, errA := meta.Accessor(a)
	mb, errB := meta.Accessor(b)
	return errA == nil && errB == nil && ma.GetResourceVersion() == mb.GetResourceVersion() && ma.GetUID() == mb.GetUID()
}

// watch watches the object from the resource version and stores its changes in e. It returns nil if the
// object must be listed again immediately, because the version is too old, and otherwise an error.
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
		// Back off if the server closes watches immediately.
		if time.Since(began) < time.Second {
			return errors.New("watch closed immediately")
		}
	}
}

// events stores the events of the watch w in e, and updates version. again is true if the watch was closed
// and can be continued from version. It returns false and no error if the version is too old.
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

// Of returns the ConfigMaps and Secrets that the spec of a pod refers to, without duplicates.
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
