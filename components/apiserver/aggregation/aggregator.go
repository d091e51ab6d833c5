// Package aggregation makes one API of several servers': APIServices name the
// groups and versions that this server or another one serves. Requests for
// another's are passed on in the name of who sent them; discovery and OpenAPI
// show all of them together.
//
// It costs nothing while there are no other servers: one watch of the
// APIServices, and one look at an empty map for each request. Each server that
// there is has a goroutine that looks whether it answers.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/
package aggregation

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// Config of an Aggregator.
type Config struct {
	// Registry tells what this server serves, and has APIServices, Services
	// and EndpointSlices.
	Registry *registry.Registry
	// REST is a superuser's way to this server, to write APIServices.
	REST *clientrest.Config
	// ClientCert returns the certificate by which other servers know this
	// one. It is asked for every connection. Nil, or nil returned: none.
	ClientCert func() (*tls.Certificate, error)
	// EndpointRouting reaches other servers at the addresses of their pods
	// and not at that of their Service: --enable-aggregator-routing.
	EndpointRouting bool
	// Lost, unless nil, is told of requests that could not be passed on: whether
	// the other server is known to have what was asked for, and the answer's status.
	Lost func(info *apirequest.RequestInfo, method string, known bool, code int)
	// Log must not be nil.
	Log *slog.Logger
}

// Aggregator knows the APIServices. Its methods are safe for several
// goroutines.
type Aggregator struct {
	cfg      Config
	services *registry.Resource
	client   apiregistrationclient.APIServiceInterface
	builtIn  map[schema.GroupVersion]Priority
	current  atomic.Pointer[snapshot]
	lost     *prometheus.CounterVec
	// outdated counts certificates of other servers as they should not be.
	outdated *outdated
	// holder is how transports get the client certificate; nil without one. All have
	// the same, for the library keeps a transport for each.
	holder *transport.GetCertHolder
	// ready is closed once all APIServices that there were are known.
	ready chan struct{}
	known sync.Once

	mu sync.Mutex // guards entries, and who writes current
	// entries are the known APIServices by name.
	entries map[string]*entry
	// probes are the goroutines that look after other servers.
	probes sync.WaitGroup
}

// entry is one APIService.
type entry struct {
	// object is shared: nobody writes to it.
	object *apiregistrationv1.APIService
	// backend is the other server; nil for what is served here.
	backend *backend
	stop    context.CancelFunc
}

// snapshot is what requests are answered by. It is never changed.
type snapshot struct {
	generation uint64
	remote     map[schema.GroupVersion]*backend
	priorities map[schema.GroupVersion]Priority
}

// New validates cfg.
func New(cfg Config) (*Aggregator, error) {
	if cfg.Registry == nil || cfg.REST == nil || cfg.Log == nil {
		return nil, errors.New("aggregation takes a registry, a way to the API and a log")
	}
	a := &Aggregator{cfg: cfg, builtIn: builtIn(), entries: map[string]*entry{}, lost: newLost(), outdated: newOutdated(), ready: make(chan struct{})}
	if cfg.ClientCert != nil {
		a.holder = &transport.GetCertHolder{GetCert: cfg.ClientCert}
	}
	a.services = cfg.Registry.Lookup(apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"))
	if a.services == nil {
		return nil, errors.New("aggregation takes a registry that has APIServices")
	}
	group, err := apiregistrationclient.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("making a client of APIServices: %w", err)
	}
	a.client = group.APIServices()
	a.current.Store(&snapshot{})
	return a, nil
}

// Ready is closed once all APIServices that there were are known.
func (a *Aggregator) Ready() <-chan struct{} { return a.ready }

// pause before what failed is tried again.
const pause = time.Second

// Run follows the APIServices until ctx ends. The registry must have all custom
// resources by now: APIServices of others are thought to be left over.
func (a *Aggregator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.probes.Wait()
	defer cancel()
	r := &registrar{Aggregator: a}
	for ctx.Err() == nil {
		err := a.follow(ctx, ctx, r)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, store.ErrTooOld) {
			a.cfg.Log.ErrorContext(ctx, "APIServices could not be followed", "error", err)
		}
		lifecycle.Pause(ctx, pause)
	}
	return nil
}

// follow takes in all APIServices, and then every change of them and of what
// this server serves, until ctx ends or something fails. What it starts for them
// goes on until life ends.
func (a *Aggregator) follow(ctx, life context.Context, r *registrar) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	page, err := a.services.Collection.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return fmt.Errorf("listing APIServices: %w", err)
	}
	w, err := a.services.Collection.Watch(ctx, store.WatchOptions{Since: page.Revision})
	if err != nil {
		return fmt.Errorf("watching APIServices: %w", err)
	}
	defer w.Close()
	there := map[string]bool{}
	for _, e := range page.Entries {
		if s := a.read(e); s != nil {
			there[s.Name] = true
			a.set(life, s)
		}
	}
	for name := range a.objects() {
		if !there[name] {
			a.forget(name)
		}
	}
	a.publish()
	a.known.Do(func() { close(a.ready) })

	type result struct {
		batch store.Batch
		err   error
	}
	// The next batch is asked for when the one before has been dealt with.
	results, more := make(chan result), make(chan struct{}, 1)
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		for {
			b, err := w.Next(ctx)
			select {
			case results <- result{b, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		changed := a.cfg.Registry.Changed()
		var again <-chan time.Time
		if err := r.register(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Log.ErrorContext(ctx, "APIServices could not be registered", "error", err)
			again = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-again:
		case got := <-results:
			if got.err != nil {
				return fmt.Errorf("watching APIServices: %w", got.err)
			}
			for _, event := range got.batch.Events {
				if event.Current == nil {
					a.forget(event.Previous.Key())
				} else if s := a.read(event.Current); s != nil {
					a.set(life, s)
				}
			}
			a.publish()
			more <- struct{}{}
		}
	}
}

// read returns the object of an entry, or nil if it cannot be read.
func (a *Aggregator) read(e *store.Entry) *apiregistrationv1.APIService {
	obj, err := a.services.Read(e)
	if err != nil {
		a.cfg.Log.Error("an APIService cannot be read and is left out", "name", e.Key(), "error", err)
		return nil
	}
	s, _ := obj.(*apiregistrationv1.APIService)
	return s
}

// objects are the known APIServices. They are shared.
func (a *Aggregator) objects() map[string]*apiregistrationv1.APIService {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]*apiregistrationv1.APIService, len(a.entries))
	for name, e := range a.entries {
		out[name] = e.object
	}
	return out
}

func (a *Aggregator) object(name string) *apiregistrationv1.APIService {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[name]; e != nil {
		return e.object
	}
	return nil
}

// set takes an APIService in. Where another server is named its probe is
// started, or started anew if anything about the server is new; it ends with life.
func (a *Aggregator) set(life context.Context, s *apiregistrationv1.APIService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.entries[s.Name]
	next := &entry{object: s}
	a.entries[s.Name] = next
	if old != nil {
		a.note(old.object, s)
	}
	if old != nil && old.backend != nil {
		if old.object.UID == s.UID && reflect.DeepEqual(old.object.Spec, s.Spec) {
			next.backend, next.stop = old.backend, old.stop
			next.backend.available.Store(helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available))
			return
		}
		old.stop()
	}
	if s.Spec.Service == nil {
		return
	}
	next.backend = a.newBackend(s)
	ctx, stop := context.WithCancel(life)
	next.stop = stop
	a.probes.Go(func() { next.backend.probe(ctx) })
}

func (a *Aggregator) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[name]; e != nil && e.backend != nil {
		e.stop()
	}
	delete(a.entries, name)
}

// publish makes what is known what requests are answered by.
func (a *Aggregator) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &snapshot{
		generation: a.current.Load().generation + 1,
		remote:     map[schema.GroupVersion]*backend{},
		priorities: make(map[schema.GroupVersion]Priority, len(a.entries)),
	}
	for _, e := range a.entries {
		gv := groupVersion(e.object)
		s.priorities[gv] = Priority{e.object.Spec.GroupPriorityMinimum, e.object.Spec.VersionPriority}
		if e.backend != nil {
			s.remote[gv] = e.backend
		}
	}
	a.current.Store(s)
}

func groupVersion(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// Handler returns who answers requests for a path below /api or /apis if that
// is another server, else nil.
func (a *Aggregator) Handler(path string) http.Handler {
	remote := a.current.Load().remote
	if len(remote) == 0 {
		return nil
	}
	if b := remote[ofPath(path)]; b != nil {
		return b
	}
	return nil
}

// ofPath is the group and version of /api/VERSION… or /apis/GROUP/VERSION….
func ofPath(path string) schema.GroupVersion {
	if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		group, rest, _ := strings.Cut(rest, "/")
		version, _, _ := strings.Cut(rest, "/")
		return schema.GroupVersion{Group: group, Version: version}
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "/")
	return schema.GroupVersion{Version: version}
}

// remotes are the other servers. The map is the caller's.
func (a *Aggregator) remotes() map[schema.GroupVersion]*backend {
	return maps.Clone(a.current.Load().remote)
}
