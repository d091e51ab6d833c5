package linearizability

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/internal/testing/history"
)

// maxWatch is the maximum duration of a watch in seconds. It is short, because watches are to be
// resumed often. connectTimeout is how long a watcher waits in addition for a server that hangs.
const (
	maxWatch       = 3
	connectTimeout = 5 * time.Second
)

// watcher follows the objects of a namespace. It lists and watches, or watches with initial events.
// After each watch it continues at the same revision, with the next server.
type watcher struct {
	*recorder
	id        int
	servers   []*server
	rests     []clientrest.Interface
	namespace string
	// key restricts the watcher to one object. Empty means all.
	key string
	// initialEvents requests the initial state as events instead of a list.
	initialEvents bool
	rand          *rand.Rand

	// current is the watch that is in progress, nil before the initial state, and last its last
	// revision.
	current *history.Watch
	last    int64
	watches []*history.Watch
	// resumed counts the watches that continued, and expired those that could not.
	resumed, expired int
}

// final is the revision of the last write to each key.
type final map[string]int64

func (f final) of(key string) int64 {
	if key != "" {
		return f[key]
	}
	last := int64(0)
	for _, revision := range f {
		last = max(last, revision)
	}
	return last
}

func newWatcher(r *recorder, id int, servers []*server, namespace, key string, initialEvents bool) *watcher {
	w := &watcher{
		recorder: r, id: id, servers: servers, namespace: namespace, key: key, initialEvents: initialEvents,
		rand: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(id))),
	}
	for _, s := range servers {
		w.rests = append(w.rests, s.connect(format(id)))
	}
	return w
}

// run watches until it has received all writes up to the final one, which done delivers, or until ctx
// is done. It reports whether it has received them.
func (w *watcher) run(ctx context.Context, done <-chan final) bool {
	defer func() { w.addWatches(w.watches) }()
	complete := func() bool { return false }
	for n := w.id; ctx.Err() == nil; n++ {
		rest := w.rests[n%len(w.rests)]
		if w.current == nil && !w.initialEvents {
			w.list(rest)
		}
		if w.current != nil || w.initialEvents {
			w.watch(ctx, rest, func(received <-chan watch.Event) (watch.Event, bool) {
				for !complete() {
					select {
					case ev, ok := <-received:
						return ev, ok
					case all := <-done:
						done = nil
						complete = func() bool {
							if w.current == nil || w.last < all.of(w.key) {
								return false
							}
							w.current.Until = all.of(w.key)
							return true
						}
					}
				}
				return watch.Event{}, false
			})
		}
		if complete() {
			return true
		}
		select {
		case <-time.After(unavailablePause):
		case <-ctx.Done():
		}
	}
	return false
}

// begin starts to record a watch with its initial state, which is also recorded as a read.
func (w *watcher) begin(call time.Duration, revision int64, objects map[string]history.Object) {
	w.current = &history.Watch{Key: w.key, From: revision, Initial: objects}
	w.watches = append(w.watches, w.current)
	w.last = revision
	op := history.Operation{Client: w.id, Call: call, Return: w.now(), Request: history.Request{Verb: history.List}}
	op.Response = history.Response{Result: history.OK, Revision: revision, Objects: objects}
	if w.key != "" {
		op.Request = history.Request{Verb: history.Get, Key: w.key}
		op.Response = history.Response{Result: history.NotFound}
		if object, exists := objects[w.key]; exists {
			op.Response = history.Response{Result: history.OK, Object: object}
		}
	}
	w.add(op)
}

func (w *watcher) request(rest clientrest.Interface, options metav1.ListOptions) *clientrest.Request {
	if w.key != "" {
		options.FieldSelector = "metadata.name=" + w.key
	}
	return rest.Get().Namespace(w.namespace).Resource("configmaps").MaxRetries(0).VersionedParams(&options, scheme.ParameterCodec)
}

func (w *watcher) list(rest clientrest.Interface) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	call := w.now()
	list := &corev1.ConfigMapList{}
	if err := w.request(rest, metav1.ListOptions{}).Do(ctx).Into(list); err != nil {
		w.failed(err)
		return
	}
	revision, objects := contentsOf(w.servers[0].t, list)
	w.begin(call, revision, objects)
}

// watch watches until next returns false.
func (w *watcher) watch(ctx context.Context, rest clientrest.Interface, next func(<-chan watch.Event) (watch.Event, bool)) {
	seconds := int64(1 + w.rand.IntN(maxWatch))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+connectTimeout)
	defer cancel()
	options := metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}
	call := w.now()
	initial := map[string]history.Object{}
	if w.current == nil {
		yes := true
		options.SendInitialEvents, options.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
	} else {
		options.ResourceVersion = strconv.FormatInt(w.last, 10)
	}
	stream, err := w.request(rest, options).Watch(ctx)
	if err != nil {
		w.failed(err)
		w.expire(err)
		return
	}
	defer stream.Stop()
	if w.current != nil {
		w.resumed++
	}
	for {
		received, ok := next(stream.ResultChan())
		if !ok {
			return
		}
		cm, isObject := received.Object.(*corev1.ConfigMap)
		if !isObject {
			err := apierrors.FromObject(received.Object)
			w.failed(err)
			w.expire(err)
			return
		}
		object := objectOf(w.servers[0].t, cm)
		switch {
		case w.current != nil:
			ev := history.WatchEvent{Type: history.EventType(received.Type), Key: cm.Name, Value: object.Value, Revision: object.Revision}
			w.current.Events = append(w.current.Events, ev)
			w.last = ev.Revision
		case received.Type == watch.Bookmark && cm.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			w.begin(call, object.Revision, initial)
		case received.Type == watch.Added:
			initial[cm.Name] = object
		default:
			w.servers[0].t.Errorf("initial event %s %s", received.Type, cm.Name)
		}
	}
}

// expire begins a new watch, with a list, if the error means that the revision is too old.
func (w *watcher) expire(err error) {
	if w.current != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		w.current = nil
		w.expired++
	}
}
