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

// The back-off after the first failed sync of a key, and the maximum back-off.
const (
	initialBackoff = 5 * time.Millisecond
	maxBackoff     = 2 * time.Minute
	// maxPrepareBackoff is the maximum back-off between calls of the function that was set with Loop.Prepare.
	maxPrepareBackoff = 10 * time.Second
)

// queueNames maps the names of loops to upstream's names of their work queues, which metrics use. Other loops have the
// same name as upstream's queue.
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

// ErrStale is returned by a sync function if the informer cache does not contain the controller's last writes yet. The
// Loop retries the sync with back-off and logs it at debug level only.
var ErrStale = errors.New("informer cache is out of date")

// ErrNoRetry is returned, wrapped with the reason, by a sync function if a retry does not help. The Loop logs the error
// and does not retry. The controller adds the key again when an event allows progress.
var ErrNoRetry = errors.New("no progress possible for now")

// Loop is the work queue and the workers of a controller. It calls a sync function for each key that was added. At most
// one goroutine syncs a key at a time. A key that is added during its sync is synced again; a key whose sync fails is
// retried with exponential back-off. Its methods are safe for concurrent use, except Watch, Await and Prepare, which
// must be called before Run.
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

// NewLoop returns a Loop that calls sync for each key. name identifies the controller in logs and metrics. The caller
// must call Run or Close, because otherwise the queue's goroutines leak.
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
		log:     env.Log,
		queue:   queue, removeMetrics: unmeasured, newWorkerMetrics: func() *componentmetrics.Worker { return env.Queues.Worker(known) },
		ready: make(chan struct{}),
	}
}

// Watch adds the event handler h to an informer. Run waits until h has received the informer's initial objects before
// it syncs. Watch must be called before Run.
func (l *Loop) Watch(informer cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("adding event handler of %s: %w", l.name, err)
	}
	l.synced = append(l.synced, reg.HasSyncedChecker())
	return nil
}

// Await makes Run wait for the initial list of an informer whose events the controller does not handle. It must be
// called before Run.
func (l *Loop) Await(informer cache.SharedIndexInformer) {
	l.synced = append(l.synced, informer.HasSyncedChecker())
}

// Prepare sets a function that Run calls when all informers are synced, before the first sync. While it returns errors,
// it is called again with back-off and no key is synced.
func (l *Loop) Prepare(f func(ctx context.Context) error) { l.prepare = f }

// Add enqueues key. It does nothing if key is already in the queue.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddAfter enqueues key after d, or immediately if d is not positive.
func (l *Loop) AddAfter(key string, d time.Duration) { l.queue.AddAfter(key, d) }

// AddRateLimited enqueues key after a back-off that grows with each call until a sync of the key
// succeeds.
func (l *Loop) AddRateLimited(key string) { l.queue.AddRateLimited(key) }

// AddObject enqueues the key of obj, its namespace/name. obj may be the tombstone of a deleted object from an informer.
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

// Ready returns a channel that is closed when the informers are synced and the workers run.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Close stops the queue and removes its metrics. Call it for a loop that is not going to run; Run calls it too. It may
// be called repeatedly.
func (l *Loop) Close() {
	l.queue.ShutDown()
	l.removeMetrics()
}

// Run waits for the informers, calls the function set by Prepare, and then runs the workers until ctx is done. It
// always returns nil. Call it once.
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

// runPrepare calls the function set by Prepare until it succeeds. It returns false if ctx is done before.
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
			l.log.WarnContext(ctx, "initialization of controller failed; it reconciles no object until a retry with back-off succeeds", "controller", l.name, "err", err)
		}
		if !retry.Pause(ctx) {
			return false
		}
	}
}

// next waits for a key and syncs it. It adds a key whose sync has failed to the queue again, after a back-off, except
// for ErrNoRetry and when ctx is done. It returns false when the queue is shut down. w records metrics of the worker.
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
		l.log.WarnContext(ctx, "reconciling object failed and cannot succeed in the present state of the cluster; retrying when a related object changes", "controller", l.name, "key", key, "err", err)
	default:
		if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
			l.log.DebugContext(ctx, "reconciling object failed because the informer cache is out of date; it is only delayed, retrying with back-off", "controller", l.name, "key", key, "err", err)
		} else {
			l.log.WarnContext(ctx, "reconciling object failed; its desired state is not reached until a retry succeeds, retrying with back-off", "controller", l.name, "key", key, "err", err)
		}
		l.queue.AddRateLimited(key)
	}
	return true
}

// Drain syncs the keys that are in the queue in the calling goroutine, and returns the first error. Tests use it
// instead of Run.
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

// Object returns the object in an informer's delete event. obj may be a tombstone, if the informer has missed the
// deletion itself. It returns false if the object is not a T.
func Object[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// Handlers returns an informer event handler that calls typed functions, each of which may be nil. Updates without a
// new resource version, which informers send at a resync, are skipped. deleted gets the last known state of the object.
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

// AnyEvent returns an informer event handler that calls f when an object is added, updated or deleted. f gets the
// current or last known state.
func AnyEvent[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, f)
}

// AddedOrUpdated returns an informer event handler that calls f with an object when it is added or updated, not when it
// is deleted.
func AddedOrUpdated[T interface{ GetResourceVersion() string }](f func(T)) cache.ResourceEventHandler {
	return Handlers(f, func(_, cur T) { f(cur) }, nil)
}
