// Package fairness shares the API server's capacity among those who use it, by
// the FlowSchemas and PriorityLevelConfigurations of the cluster: a request
// takes seats of its level for as long as it is worked on, waits in a queue
// when there are none, and is turned away when it waits too long.
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
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // measures the queue of the library's controller

	"hyperkube/components/apiserver/request"
)

// DebugPath is below which the state of the queues is shown.
const DebugPath = "/debug/api_priority_and_fairness/"

// Config of a Limiter.
type Config struct {
	// Informers tell the configuration; whoever composes the server starts
	// them. Until they have synced, upstream's mandatory configuration holds.
	Informers informers.SharedInformerFactory
	// Client writes the status of FlowSchemas.
	Client flowcontrolclient.FlowcontrolV1Interface
	// Seats is how many requests are worked on at the same time, levels
	// together.
	Seats int
	// Stats tells how many objects a resource has and about how many bytes
	// each; false when that is not known. It may be nil.
	Stats func(schema.GroupResource) (count, size int, ok bool)
	// Queued, unless nil, is told of requests that begin and cease to wait.
	Queued func(readOnly, waits bool)
	Log    *slog.Logger
}

// Limiter decides when requests are worked on. It is safe for use by several
// goroutines.
type Limiter struct {
	cfg      Config
	control  flowcontrol.Interface
	estimate flowrequest.WorkEstimatorFunc
	dropped  flowcontrol.DroppedRequestsTracker
	debug    http.Handler
	// reading and mutating are told of requests of their kind that wait.
	reading, mutating fairqueuing.QueueNoteFn
}

// New makes a Limiter with the mandatory configuration. It asks cfg.Informers
// for those it needs.
func New(cfg Config) (*Limiter, error) {
	if cfg.Informers == nil || cfg.Client == nil || cfg.Seats <= 0 {
		return nil, errors.New("priority and fairness needs informers, a client and seats")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	flowmetrics.Register()
	l := &Limiter{
		cfg:     cfg,
		control: flowcontrol.New(sound{cfg.Informers, cfg.Log}, cfg.Client, cfg.Seats),
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

// Debug shows the queues below DebugPath.
func (l *Limiter) Debug() http.Handler { return l.debug }

// Run follows the configuration until ctx ends.
func (l *Limiter) Run(ctx context.Context) error {
	if err := l.control.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// stats of a resource, named as "deployments.apps".
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

// ticket is one request on its way through.
type ticket struct {
	*Limiter
	w      http.ResponseWriter
	req    *http.Request
	next   http.Handler
	schema *flowcontrolv1.FlowSchema
	level  *flowcontrolv1.PriorityLevelConfiguration
	served bool
}

// Serve calls next when it is the request's turn, and otherwise answers that
// there are too many. Streams are not limited, watches until they have told
// what was there when they began (they call flowcontrol.WatchInitialized).
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
		ctx, cancel := wait(req.Context())
		l.control.Handle(ctx, digest, t.classified, t.work, l.notes(req), t.serve)
		cancel()
	}
	if t.served {
		return
	}
	t.header()
	l.dropped.RecordDroppedRequest(t.level.Name)
	TooMany(w, l.dropped.GetRetryAfter(t.level.Name))
}

// notes is who is told when a request waits.
func (l *Limiter) notes(req *http.Request) fairqueuing.QueueNoteFn {
	if req.Method == http.MethodGet {
		return l.reading
	}
	return l.mutating
}

func ignoreQueue(bool) {}

// TooMany answers that a request shall come again after so many seconds.
func TooMany(w http.ResponseWriter, after int64) {
	w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}

// usualPatience is how long a request without a deadline waits at most in a queue.
const usualPatience = 15 * time.Second

// wait bounds how long a request is queued: one with a deadline waits for a quarter
// of its time.
func wait(ctx context.Context) (context.Context, context.CancelFunc) {
	patience := usualPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 4
	}
	return context.WithTimeout(ctx, min(patience, time.Minute))
}

func (t *ticket) classified(s *flowcontrolv1.FlowSchema, p *flowcontrolv1.PriorityLevelConfiguration, _ string) {
	t.schema, t.level = s, p
}

func (t *ticket) work() flowrequest.WorkEstimate {
	e := t.estimate(t.req, t.schema.Name, t.level.Name)
	flowmetrics.ObserveWorkEstimatedSeats(t.level.Name, t.schema.Name, e.MaxSeats())
	return e
}

// header tells by which objects a request was judged; by their UIDs, for names
// might tell those who may not read them something.
func (t *ticket) header() {
	h := t.w.Header()
	h[headerLevel] = []string{string(t.level.UID)}
	h[headerSchema] = []string{string(t.schema.UID)}
}

// The headers in the form in which they are sent.
var (
	headerLevel  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	headerSchema = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

func (t *ticket) serve() {
	t.served = true
	t.header()
	t.next.ServeHTTP(t.w, t.req)
}

// watch serves a watch in this goroutine, while another holds its seats until
// it has begun.
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
		waiting, cancel := wait(ctx)
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
			// However the watch ends, its seats are free afterwards.
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
		panic(failed) // the filter chain answers for it
	}
}
