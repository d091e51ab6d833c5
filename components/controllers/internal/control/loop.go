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

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/serving/componentmetrics"
)

// The back-off of a key after its first failure, and the maximum.
const (
	initialBackoff = 5 * time.Millisecond
	maxBackoff     = 2 * time.Minute
	// maxPrepareBackoff is the maximum back-off of the function set by Prepare.
	maxPrepareBackoff = 10 * time.Second
)

// queueNames are upstream's names in metrics, for loops that have another name here.
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

// ErrStale is returned by a sync because the cache does not contain the controller's last writes
// yet. The sync is retried.
var ErrStale = errors.New("informer cache is out of date")

// ErrNoRetry is returned by a sync if a retry does not help. The controller adds the key again when
// an event allows progress.
var ErrNoRetry = errors.New("no progress possible for now")

// Loop runs syncs for keys: at most one goroutine syncs a key at a time. A key that is added during
// its sync is synced again; a key whose sync fails is retried with exponential back-off. Its
// methods are safe for concurrent use.
type Loop struct {
	name    string
	workers int
	sync    func(ctx context.Context, key string) error
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[string]
	// newWorkerMetrics returns the metrics of a worker; removeMetrics removes the queue's metrics after its
	// shutdown.
	newWorkerMetrics func() *componentmetrics.Worker
	removeMetrics    func()
	ready            chan struct{}
	synced           []cache.DoneChecker
	prepare          func(ctx context.Context) error
}

// NewLoop creates a loop that calls sync for each key. The caller must call Run or Close, because
// otherwise the queue's goroutines leak.
func NewLoop(env Env, name string, sync func(ctx context.Context, key string) error) *Loop {
	env = env.Defaulted()
	known := name
	if upstreams := queueNames[name]; upstreams != "" {
		known = upstreams
	}
	queue, unmeasured := env.Queues.New(known, workqueue.NewTypedItemExponentialFailureRateLimiter[string](initialBackoff, maxBackoff))
	return &Loop{
		name:    name,
		workers: env.Workers,
		sync:    sync,
		log:     env.Log.With("controller", name),
		queue:   queue, removeMetrics: unmeasured, newWorkerMetrics: func() *componentmetrics.Worker { return env.Queues.Worker(known) },
		ready: make(chan struct{}),
	}
}

// Watch adds h to an informer's handlers. Run then waits until h has received the informer's
// initial objects. Watch must be called before Run.
func (l *Loop) Watch(informer cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("adding event handler of %s: %w", l.name, err)
	}
	l.synced = append(l.synced, reg.HasSyncedChecker())
	return nil
}

// Await makes Run wait for an informer's initial list, without handling its events.
func (l *Loop) Await(informer cache.SharedIndexInformer) {
	l.synced = append(l.synced, informer.HasSyncedChecker())
}

// Prepare sets a function that Run calls once all informers are synced, before the first sync. If
// it fails, it is retried.
func (l *Loop) Prepare(f func(ctx context.Context) error) { l.prepare = f }

// Add enqueues key.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddAfter enqueues key after d, or immediately if d is not positive.
func (l *Loop) AddAfter(key string, d time.Duration) { l.queue.AddAfter(key, d) }

// AddRateLimited enqueues key after a back-off that grows with each call until a sync of the key
// succeeds.
func (l *Loop) AddRateLimited(key string) { l.queue.AddRateLimited(key) }

// AddObject enqueues the key of obj, which may be the tombstone of a deleted object.
func (l *Loop) AddObject(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		l.queue.Add(key)
	}
}

// SplitKey splits a key created by AddObject. The namespace of cluster-scoped objects is empty. The
// name may contain further slashes.
func SplitKey(key string) (namespace, name string) {
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		return "", namespace
	}
	return namespace, name
}

// Len returns the number of keys in the queue.
func (l *Loop) Len() int { return l.queue.Len() }

// Ready is closed once the informers are synced and the workers run.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Close stops the queue of a loop that is not going to run. It may be called repeatedly.
func (l *Loop) Close() {
	l.queue.ShutDown()
	l.removeMetrics()
}

// Run runs the workers until ctx is canceled, and closes the loop.
func (l *Loop) Run(ctx context.Context) error {
	defer l.Close()
	for _, s := range l.synced {
		select {
		case <-s.Done():
		case <-ctx.Done():
			return nil
		}
	}
	if !l.runPrepare(ctx) {
		return nil
	}
	var wg sync.WaitGroup
	for range l.workers {
		w := l.newWorkerMetrics()
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

// runPrepare calls the function set by Prepare until it succeeds. It returns false if ctx is canceled
// before.
func (l *Loop) runPrepare(ctx context.Context) bool {
	if l.prepare == nil {
		return true
	}
	retry := backoff.Backoff{First: initialBackoff, Max: maxPrepareBackoff}
	for {
		err := l.prepare(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			l.log.WarnContext(ctx, "preparing controller before its first sync failed, retrying", "err", err)
		}
		if !retry.Pause(ctx) {
			return false
		}
	}
}

// next syncs one key. It returns false once the queue is shut down.
func (l *Loop) next(ctx context.Context, w *componentmetrics.Worker) bool {
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
	case errors.Is(err, ErrNoRetry):
		l.queue.Forget(key)
		l.log.WarnContext(ctx, "syncing object failed, not retrying", "key", key, "err", err)
	default:
		if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
			l.log.DebugContext(ctx, "syncing object failed because the informer cache is out of date, retrying", "key", key, "err", err)
		} else {
			l.log.WarnContext(ctx, "syncing object failed, retrying", "key", key, "err", err)
		}
		l.queue.AddRateLimited(key)
	}
	return true
}

// Drain syncs all keys in the queue in the calling goroutine, and returns the first error. It is
// for tests, which use a controller without Run.
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

// Object returns the object of an informer's event, from the tombstone if its deletion was missed.
// It returns false if the object is not a T.
func Object[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// Handlers returns an event handler that calls typed functions; each may be nil. Updates without a
// new resource version are skipped. deleted receives the last known state.
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

// AnyEvent returns an event handler that calls f with the current object at each event.
func AnyEvent[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, f)
}

// AddedOrUpdated returns an event handler that calls f with an object when it is added or updated.
func AddedOrUpdated[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, nil)
}
