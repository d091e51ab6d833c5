// Package fairness implements API Priority and Fairness: it distributes the server's capacity
// according to the cluster's FlowSchemas and PriorityLevelConfigurations. A request occupies seats
// of its priority level while it executes, is queued if there are none, and is rejected if it waits
// too long.
//
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
package fairness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue metrics of the library's controller

	"hyperkube/components/apiserver/request"
)

// DebugPath is the path prefix of the debug pages of API Priority and Fairness, such as
// dump_queues.
const DebugPath = "/debug/api_priority_and_fairness/"

// Config contains the informers of the flow control configuration and the total limit of concurrent requests for a
// Limiter, which implements API Priority and Fairness.
type Config struct {
	// Informers provide the configuration. The caller starts them. Until they have synced,
	// upstream's mandatory configuration applies.
	Informers informers.SharedInformerFactory
	// Client updates the status of FlowSchemas.
	Client flowcontrolclient.FlowcontrolV1Interface
	// Seats is the maximum number of concurrent requests of all priority levels together.
	Seats int
	// Stats returns the number of a resource's objects and their approximate size in bytes, or
	// false if unknown. It may be nil.
	Stats func(schema.GroupResource) (count, size int, ok bool)
	// Queued, unless nil, is called when a request enters (waits is true) or leaves a queue.
	// readOnly is set for GET requests.
	Queued func(readOnly, waits bool)
	// Log receives warnings about invalid objects. Nil means slog's default.
	Log *slog.Logger
}

// Limiter limits concurrent requests with API Priority and Fairness. It is safe for concurrent use.
type Limiter struct {
	cfg      Config
	control  flowcontrol.Interface
	estimate flowrequest.WorkEstimatorFunc
	// dropped computes after how many seconds rejected clients should retry.
	dropped flowcontrol.DroppedRequestsTracker
	debug   http.Handler
	// reading and mutating are called when a request of that kind enters or leaves a queue.
	reading, mutating fairqueuing.QueueNoteFn
}

// New validates cfg and returns a Limiter with upstream's mandatory configuration, which applies
// until Run has read the cluster's. It registers with the informers, so the caller must start them
// afterwards.
func New(cfg Config) (*Limiter, error) {
	if cfg.Informers == nil || cfg.Client == nil || cfg.Seats <= 0 {
		return nil, errors.New("priority and fairness requires informers, a client and seats")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	flowmetrics.Register()
	l := &Limiter{
		cfg:     cfg,
		control: flowcontrol.New(validInformers{cfg.Informers, cfg.Log}, cfg.Client, cfg.Seats),
		dropped: flowcontrol.NewDroppedRequestsTracker(),
		reading: ignoreQueue, mutating: ignoreQueue,
	}
	if cfg.Queued != nil {
		l.reading = func(waits bool) { cfg.Queued(true, waits) }
		l.mutating = func(waits bool) { cfg.Queued(false, waits) }
	}
	l.estimate = flowrequest.NewWorkEstimator(l.stats, l.control.GetInterestedWatchCount, flowrequest.DefaultWorkEstimatorConfig(), l.control.GetMaxSeats)
	paths := mux.NewPathRecorderMux("priority-and-fairness")
	l.control.Install(paths)
	l.debug = paths
	return l, nil
}

// Debug returns the handler of the debug pages below DebugPath, which show priority levels, queues and requests.
func (l *Limiter) Debug() http.Handler { return l.debug }

// Run applies the FlowSchemas and PriorityLevelConfigurations of the cluster whenever they change, until ctx is
// canceled. It returns an error if the informers do not sync.
func (l *Limiter) Run(ctx context.Context) error {
	if err := l.control.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// stats returns the number and average size of a resource's objects, from which the seats of a list are estimated.
// name is like "deployments.apps". It returns an error if they are unknown.
func (l *Limiter) stats(name string) (storage.Stats, error) {
	if l.cfg.Stats == nil {
		return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
	}
	resource, group, _ := strings.Cut(name, ".")
	n, size, ok := l.cfg.Stats(schema.GroupResource{Group: group, Resource: resource})
	if !ok {
		return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
	}
	return storage.Stats{ObjectCount: int64(n), EstimatedAverageObjectSizeBytes: int64(size)}, nil
}

// ticket is the state of one request while it waits for its seats and is served. schema and level
// are set once the request is classified, served once its handler has been called.
type ticket struct {
	*Limiter
	w      http.ResponseWriter
	req    *http.Request
	next   http.Handler
	schema *flowcontrolv1.FlowSchema
	level  *flowcontrolv1.PriorityLevelConfiguration
	served bool
}

// Serve calls next when the request has been assigned its seats, and responds with 429 if it was queued for too long
// or the queues are full. Long-running requests are not limited, except watches, which occupy seats until they have
// sent their initial events (they call flowcontrol.WatchInitialized).
func (l *Limiter) Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler) {
	watch := info.Verb == "watch"
	if !watch && request.LongRunning(info) {
		next.ServeHTTP(w, req)
		return
	}
	t := &ticket{Limiter: l, w: w, req: req, next: next}
	digest := flowcontrol.RequestDigest{RequestInfo: info, User: u}
	if watch {
		t.watch(digest)
	} else {
		ctx, cancel := withQueueTimeout(req.Context())
		l.control.Handle(ctx, digest, t.classified, t.work, l.queueNote(req), t.serve)
		cancel()
	}
	if t.served {
		return
	}
	t.header()
	l.dropped.RecordDroppedRequest(t.level.Name)
	TooMany(w, l.dropped.GetRetryAfter(t.level.Name))
}

// queueNote returns the function that is called when the request enters or leaves a queue, for metrics: that for
// reading requests if the method is GET, otherwise that for mutating ones.
func (l *Limiter) queueNote(req *http.Request) fairqueuing.QueueNoteFn {
	if req.Method == http.MethodGet {
		return l.reading
	}
	return l.mutating
}

// ignoreQueue is the default of Config.Queued. It does nothing.
func ignoreQueue(bool) {}

// TooMany responds with 429 and asks the client to retry after a number of seconds.
func TooMany(w http.ResponseWriter, after int64) {
	w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}

// defaultQueueTimeout is the maximum time in a queue for requests without a deadline.
const defaultQueueTimeout = 15 * time.Second

// withQueueTimeout returns a context that is done when a request has been queued for too long: after a quarter of the
// time until its deadline, or after defaultQueueTimeout if it has no deadline, but at most after a minute.
func withQueueTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	patience := defaultQueueTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 4
	}
	return context.WithTimeout(ctx, min(patience, time.Minute))
}

// classified stores the FlowSchema and the priority level that the request was assigned to. The flow control library
// calls it.
func (t *ticket) classified(s *flowcontrolv1.FlowSchema, p *flowcontrolv1.PriorityLevelConfiguration, _ string) {
	t.schema, t.level = s, p
}

// work returns how many seats the request occupies and for how long, and counts them. The flow control library calls
// it after classified.
func (t *ticket) work() flowrequest.WorkEstimate {
	e := t.estimate(t.req, t.schema.Name, t.level.Name)
	flowmetrics.ObserveWorkEstimatedSeats(t.level.Name, t.schema.Name, e.MaxSeats())
	return e
}

// header sets the response headers with the UIDs of the FlowSchema and PriorityLevelConfiguration
// that match the request. They contain no names, because users may not be allowed to read these
// objects.
func (t *ticket) header() {
	h := t.w.Header()
	h[headerLevel] = []string{string(t.level.UID)}
	h[headerSchema] = []string{string(t.schema.UID)}
}

// headerLevel and headerSchema are the names of the headers that ticket.header sets, in canonical
// form.
var (
	headerLevel  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	headerSchema = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

// serve calls the handler of the request, with the response headers of flow control.
func (t *ticket) serve() {
	t.served = true
	t.header()
	t.next.ServeHTTP(t.w, t.req)
}

// watch serves a watch in the caller's goroutine as soon as it gets its seats. Another goroutine occupies the seats
// until the watch has sent its initial events or ended. It returns without serving if the watch is rejected, and
// repeats a panic of the other goroutine.
func (t *ticket) watch(digest flowcontrol.RequestDigest) {
	begun := flowcontrol.NewInitializationSignal()
	start := make(chan struct{})
	ended := make(chan any, 1)
	var forget flowcontrol.ForgetWatchFunc
	ctx := t.req.Context()
	go func() {
		defer func() {
			v := recover()
			if v != nil {
				v = fmt.Sprintf("%v\n%s", v, debug.Stack())
			}
			ended <- v
		}()
		waiting, cancel := withQueueTimeout(ctx)
		defer cancel()
		t.control.Handle(waiting, digest, t.classified, t.work, t.reading, func() {
			t.served = true
			t.header()
			forget = t.control.RegisterWatch(t.req)
			close(start)
			begun.Wait()
		})
	}()
	var failed any
	select {
	case <-start:
		func() {
			// Release the seats regardless of how the watch ends.
			defer func() {
				begun.Signal()
				failed = <-ended
				if forget != nil {
					forget()
				}
			}()
			t.next.ServeHTTP(t.w, t.req.WithContext(flowcontrol.WithInitializationSignal(ctx, begun)))
		}()
	case failed = <-ended:
	}
	if failed != nil {
		panic(failed) // the filter chain recovers from the panic
	}
}
