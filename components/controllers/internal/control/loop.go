package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"hyperkube/internal/lifecycle"
	"hyperkube/internal/measure"
)

// How long a key waits after its first and at most after its n-th failure.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 2 * time.Minute
	// lastPrepare is how long at most until what comes before all keys is tried
	// again.
	lastPrepare = 10 * time.Second
)

// queueNames are the names under which upstream measures the queues of loops that
// are called otherwise here.
var queueNames = map[string]string{
	"rootca":                           "root_ca_cert_publisher",
	"resourcequota":                    "resourcequota_primary",
	"persistentvolume-binder":          "claims",
	"serviceaccount_token":             "serviceaccount_tokens_service",
	"garbagecollector":                 "garbage_collector_attempt_to_delete",
	"garbagecollector-orphan":          "garbage_collector_attempt_to_orphan",
	"attachdetach":                     "pvcs",
	"pv-protection":                    "pvprotection",
	"pvc-protection":                   "pvcprotection",
	"volumeattributesclass-protection": "vacprotection",
	"csrapproving":                     "certificate",
	"csrsigning":                       "certificate",
	"podgc":                            "orphaned_pods_nodes",
	"ttlafterfinished":                 "ttl_jobs_to_delete",
	"service-cidrs":                    "ipaddresses",
	"nodelifecycle":                    "node_lifecycle_controller",
	"bootstrap_signer":                 "bootstrap_signer_queue",
	"endpointslice":                    "endpoint_slice",
	"endpointslicemirroring":           "endpoint_slice_mirroring",
	"endpoints":                        "endpoint",
	"ephemeral-volume":                 "ephemeral_volume",
	"persistentvolume-expander":        "volume_expand",
	"clusterroleaggregation":           "ClusterRoleAggregator",
	"tainteviction":                    "noexec_taint_pod",
	"clustertrustbundle":               "ca_cert_publisher_cluster_trust_bundles",
}

// ErrStale says that the cache lacks the controller's own last writes: there is
// nothing to do but to wait for them.
var ErrStale = errors.New("informer cache is out of date")

// ErrWaits says that trying again does not help: whoever returns it adds the key
// when what it waits for has come.
var ErrWaits = errors.New("nothing can be done for now")

// Loop works on keys: each is worked on by one goroutine at a time, again
// after it was added meanwhile, and again with growing delay after a failure.
// All methods are safe for several goroutines.
type Loop struct {
	name    string
	workers int
	sync    func(ctx context.Context, key string) error
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[string]
	// measured makes what measures the workers; unmeasured ends it, for the
	// queue is shut down.
	measured   func() *measure.Worker
	unmeasured func()
	ready      chan struct{}
	synced     []cache.DoneChecker
	prepare    func(ctx context.Context) error
}

// NewLoop makes a loop that hands each key to sync. Its Run must be called, or
// its goroutine stays.
func NewLoop(env Env, name string, sync func(ctx context.Context, key string) error) *Loop {
	env = env.Defaulted()
	known := name
	if upstreams := queueNames[name]; upstreams != "" {
		known = upstreams
	}
	queue, unmeasured := env.Queues.New(known, workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
	return &Loop{
		name:    name,
		workers: env.Workers,
		sync:    sync,
		log:     env.Log.With("controller", name),
		queue:   queue, unmeasured: unmeasured, measured: func() *measure.Worker { return env.Queues.Worker(known) },
		ready: make(chan struct{}),
	}
}

// Watch adds h to an informer's handlers and makes Run wait until h has seen
// all objects that the informer began with. It is called before Run.
func (l *Loop) Watch(informer cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("watching for %s: %w", l.name, err)
	}
	l.synced = append(l.synced, reg.HasSyncedChecker())
	return nil
}

// Await makes Run wait for an informer's first list without handling its
// events.
func (l *Loop) Await(informer cache.SharedIndexInformer) {
	l.synced = append(l.synced, informer.HasSyncedChecker())
}

// Prepare sets what Run calls once all informers are synced, before the first
// key is worked on. When it fails, it is called again after a while.
func (l *Loop) Prepare(f func(ctx context.Context) error) { l.prepare = f }

// Add asks for key to be worked on.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddAfter asks for key to be worked on after d; at once if d is not positive.
func (l *Loop) AddAfter(key string, d time.Duration) { l.queue.AddAfter(key, d) }

// AddRateLimited asks for key to be worked on after a delay that grows with
// each call until its sync succeeds.
func (l *Loop) AddRateLimited(key string) { l.queue.AddRateLimited(key) }

// AddObject adds the key of obj, which may be the tombstone of a deleted
// object.
func (l *Loop) AddObject(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		l.queue.Add(key)
	}
}

// SplitKey tells which object AddObject has made key of; the namespace is empty for what is
// in none. What comes after a second slash belongs to the name.
func SplitKey(key string) (namespace, name string) {
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		return "", namespace
	}
	return namespace, name
}

// Len tells how many keys wait.
func (l *Loop) Len() int { return l.queue.Len() }

// Ready is closed once the informers are synced and the workers run.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Run works until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	defer l.unmeasured()
	defer l.queue.ShutDown()
	for _, s := range l.synced {
		select {
		case <-s.Done():
		case <-ctx.Done():
			return nil
		}
	}
	if !l.prepared(ctx) {
		return nil
	}
	var wg sync.WaitGroup
	for range l.workers {
		w := l.measured()
		wg.Go(func() {
			for l.next(ctx, w) {
			}
		})
	}
	close(l.ready)
	<-ctx.Done()
	l.queue.ShutDown()
	wg.Wait()
	return nil
}

// prepared makes what is to be made first, however often that fails; it is false when
// ctx has ended.
func (l *Loop) prepared(ctx context.Context) bool {
	if l.prepare == nil {
		return true
	}
	for wait := firstRetry; ; wait = min(2*wait, lastPrepare) {
		err := l.prepare(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			l.log.WarnContext(ctx, "cannot begin to work, trying again", "error", err)
		}
		if !lifecycle.Pause(ctx, wait) {
			return false
		}
	}
}

// next works on one key and returns false once the queue is shut down.
func (l *Loop) next(ctx context.Context, w *measure.Worker) bool {
	key, down := l.queue.Get()
	if down {
		return false
	}
	w.Begin()
	defer w.End()
	defer l.queue.Done(key)
	err := l.sync(ctx, key)
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil:
	case errors.Is(err, ErrWaits):
		l.queue.Forget(key)
		l.log.WarnContext(ctx, "sync failed", "key", key, "error", err)
	default:
		if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
			l.log.DebugContext(ctx, "cache was behind, trying again", "key", key, "error", err)
		} else {
			l.log.WarnContext(ctx, "sync failed, trying again", "key", key, "error", err)
		}
		l.queue.AddRateLimited(key)
	}
	return true
}

// Drain works on all keys that wait now, in the calling goroutine, and returns
// the first error. It is for tests, which drive a controller without Run.
func (l *Loop) Drain(ctx context.Context) error {
	var first error
	for n := l.queue.Len(); n > 0; n-- {
		key, down := l.queue.Get()
		if down {
			break
		}
		if err := l.sync(ctx, key); err != nil && first == nil {
			first = err
		}
		l.queue.Done(key)
	}
	return first
}

// Object returns the object of an informer's event, taken out of its tombstone
// if it was deleted unseen; false if it is no T.
func Object[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// Handlers makes an event handler of typed functions; any may be nil. An
// update that changed nothing is not passed on. Deleted gets the last known
// state.
func Handlers[T interface{ GetResourceVersion() string }](added func(T), updated func(old, cur T), deleted func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if t, ok := obj.(T); ok && added != nil {
				added(t)
			}
		},
		UpdateFunc: func(a, b any) {
			old, ok1 := a.(T)
			cur, ok2 := b.(T)
			if !ok1 || !ok2 || updated == nil {
				return
			}
			if v := cur.GetResourceVersion(); v != "" && v == old.GetResourceVersion() {
				return
			}
			updated(old, cur)
		},
		DeleteFunc: func(obj any) {
			if t, ok := Object[T](obj); ok && deleted != nil {
				deleted(t)
			}
		},
	}
}

// Every makes an event handler that calls f with the present state at each
// event.
func Every[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, f)
}

// Living makes an event handler that calls f with what an object is like when it
// is added and when it changes.
func Living[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, nil)
}
