// Package aggregation combines the APIs of several servers into one. An APIService names the
// server, this one or another, that serves a group and version. Requests for other servers are
// proxied with the identity of the user. Discovery and OpenAPI include all of them.
//
// Without other servers the cost is one watch of the APIServices and one lookup in an empty map per
// request. For each other server there is a goroutine that checks its availability.
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
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// Config is the configuration of an Aggregator, which proxies requests for the APIs of other
// servers.
type Config struct {
	// Registry contains the resources of this server, including APIServices, Services and
	// EndpointSlices.
	Registry *registry.Registry
	// REST configures a client of this server with superuser permissions, which writes APIServices.
	REST *clientrest.Config
	// ClientCert returns the client certificate with which this server authenticates to other
	// servers. It is called for every connection. If it is nil or returns nil, no certificate is
	// sent.
	ClientCert func() (*tls.Certificate, error)
	// EndpointRouting sends requests for other servers to the addresses of their pods instead of the cluster IP of
	// their Service: --enable-aggregator-routing.
	EndpointRouting bool
	// ProxyFailed, unless nil, is called for requests that could not be proxied. known reports whether the other
	// server's last discovery document contains the resource, and code is the response status.
	ProxyFailed func(info *apirequest.RequestInfo, method string, known bool, code int)
	// Local are the APIs of other components in this process.
	Local []LocalAPI
	// Log must not be nil.
	Log *slog.Logger
}

// Aggregator watches the APIServices, proxies requests for aggregated APIs to their servers, and
// maintains the APIServices of the APIs that this server serves. It is safe for concurrent use.
type Aggregator struct {
	cfg              Config
	services         *registry.Resource
	client           apiregistrationclient.APIServiceInterface
	builtIn          map[schema.GroupVersion]Priority
	local            map[schema.GroupVersion]*localAPI
	current          atomic.Pointer[snapshot]
	unavailableTotal *prometheus.CounterVec
	// certificateMetrics counts other servers' certificates that do not meet current requirements.
	certificateMetrics *certificateMetrics
	// holder provides the client certificate to transports. It is nil if there is none. All
	// transports share it because the library caches one transport per holder.
	holder *transport.GetCertHolder
	// ready is closed once all APIServices that existed at startup have been processed.
	ready chan struct{}
	known sync.Once

	mu sync.Mutex // guards entries and serializes writes of current
	// entries are the APIServices by name.
	entries map[string]*entry
	// probes are the goroutines that check the availability of other servers.
	probes sync.WaitGroup
}

// entry is an APIService that the Aggregator tracks and, if it refers to another server, the connection to that
// server.
type entry struct {
	// object is shared and must not be modified.
	object *apiregistrationv1.APIService
	// backend is the other server. It is nil for groups that this server serves.
	backend *backend
	// stop terminates the availability checks of backend.
	stop context.CancelFunc
}

// snapshot is the immutable state of the Aggregator that requests read without a lock: the connections to other
// servers and the priorities of all group versions. Each change of an APIService creates a new one.
type snapshot struct {
	generation uint64
	remote     map[schema.GroupVersion]*backend
	local      map[schema.GroupVersion]*localAPI
	priorities map[schema.GroupVersion]Priority
}

// New validates cfg and returns an Aggregator. It proxies no requests before Run has read the APIServices.
func New(cfg Config) (*Aggregator, error) {
	if cfg.Registry == nil || cfg.REST == nil || cfg.Log == nil {
		return nil, errors.New("aggregation requires a registry, a client configuration and a logger")
	}
	a := &Aggregator{cfg: cfg, builtIn: builtIn(), entries: map[string]*entry{}, unavailableTotal: newUnavailableTotal(), certificateMetrics: newCertificateMetrics(), ready: make(chan struct{})}
	if cfg.ClientCert != nil {
		a.holder = &transport.GetCertHolder{GetCert: cfg.ClientCert}
	}
	a.services = cfg.Registry.Lookup(apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"))
	if a.services == nil {
		return nil, errors.New("aggregation requires a registry with APIServices")
	}
	group, err := apiregistrationclient.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("creating APIService client: %w", err)
	}
	a.client = group.APIServices()
	if a.local, err = newLocalAPIs(cfg.Local); err != nil {
		return nil, err
	}
	a.current.Store(&snapshot{})
	return a, nil
}

// Ready returns a channel that is closed once all APIServices that existed at startup have been
// processed. Until then it is unknown which APIs other servers serve.
func (a *Aggregator) Ready() <-chan struct{} { return a.ready }

// retryDelay is the delay before a failed operation, such as a watch or a write, is retried.
const retryDelay = time.Second

// Run watches the APIServices until ctx is canceled. It starts availability checks of other servers and maintains the
// APIServices of the group versions that this server serves. All custom resources must be registered before, because
// Run deletes managed APIServices whose group version is not registered. It retries every second after errors.
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
			a.cfg.Log.WarnContext(ctx, "watching APIServices failed; new aggregated APIs are not served, and changed or deleted ones are served as before, until the watch works again, retrying in a second", "err", err)
		}
		lifecycle.Pause(ctx, retryDelay)
	}
	return nil
}

// follow lists all APIServices, and then processes every change of them and of the resources that this server serves.
// It returns when ctx is canceled or the watch fails; a failed write is retried every second. The availability checks
// that it starts run until life is canceled, because they continue if follow is called again.
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
	// The next batch is requested after the previous one has been processed.
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
			a.cfg.Log.WarnContext(ctx, "writing APIServices of the API groups that this API server serves itself failed; clients that list APIServices may miss new groups or see removed ones, retrying in a second", "err", err)
			again = time.After(retryDelay)
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

// read decodes the APIService in e, an entry of the watch cache. The result is shared. If the object cannot be
// decoded, read logs that its API is not served and returns nil.
func (a *Aggregator) read(e *store.Entry) *apiregistrationv1.APIService {
	obj, err := a.services.Read(e)
	if err != nil {
		a.cfg.Log.Error("APIService in etcd cannot be decoded; its aggregated API is not served or keeps its previous settings: restore its encryption key and restart the API server, or delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential", "apiservice", e.Key(), "err", err)
		return nil
	}
	s, _ := obj.(*apiregistrationv1.APIService)
	return s
}

// objects returns the APIServices that the Aggregator has received from the watch, by name. The caller owns the map,
// but the objects are shared.
func (a *Aggregator) objects() map[string]*apiregistrationv1.APIService {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]*apiregistrationv1.APIService, len(a.entries))
	for name, e := range a.entries {
		out[name] = e.object
	}
	return out
}

// object returns the APIService with the name as last received from the watch, or nil. It is shared.
func (a *Aggregator) object(name string) *apiregistrationv1.APIService {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[name]; e != nil {
		return e.object
	}
	return nil
}

// set records a new or changed APIService. If it refers to another server, set starts the availability checks of the
// server, or restarts them if the spec has changed or the APIService was replaced. They run until life is canceled.
// Call publish to make the change effective for requests.
func (a *Aggregator) set(life context.Context, s *apiregistrationv1.APIService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.entries[s.Name]
	next := &entry{object: s}
	a.entries[s.Name] = next
	if old != nil {
		a.countUnavailable(old.object, s)
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

// forget removes a deleted APIService and stops the availability checks of its server.
func (a *Aggregator) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[name]; e != nil && e.backend != nil {
		e.stop()
	}
	delete(a.entries, name)
}

// publish makes the recorded APIServices effective for requests and discovery, by creating a new snapshot. It also
// gives discovery a new generation.
func (a *Aggregator) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &snapshot{
		generation: a.current.Load().generation + 1,
		remote:     map[schema.GroupVersion]*backend{},
		local:      map[schema.GroupVersion]*localAPI{},
		priorities: make(map[schema.GroupVersion]Priority, len(a.entries)),
	}
	for _, e := range a.entries {
		gv := groupVersion(e.object)
		s.priorities[gv] = Priority{e.object.Spec.GroupPriorityMinimum, e.object.Spec.VersionPriority}
		if e.backend != nil {
			s.remote[gv] = e.backend
		} else if l := a.local[gv]; l != nil {
			s.local[gv] = l
		}
	}
	a.current.Store(s)
	for gv, l := range a.local {
		if l.served != nil {
			l.served(s.local[gv] != nil)
		}
	}
}

// groupVersion returns the API group and version that an APIService is for.
func groupVersion(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// Handler returns the handler that serves requests for a path below /api or /apis if another server
// or another component of this process serves it, or nil if this server serves the path itself.
func (a *Aggregator) Handler(path string) http.Handler {
	s := a.current.Load()
	if len(s.remote) == 0 && len(s.local) == 0 {
		return nil
	}
	gv := groupVersionOfPath(path)
	if b := s.remote[gv]; b != nil {
		return b
	}
	if l := s.local[gv]; l != nil {
		return l.handler
	}
	return nil
}

// groupVersionOfPath returns the group and version in a path such as /api/VERSION/… or /apis/GROUP/VERSION/…. Parts
// that the path does not have are empty.
func groupVersionOfPath(path string) schema.GroupVersion {
	if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		group, rest, _ := strings.Cut(rest, "/")
		version, _, _ := strings.Cut(rest, "/")
		return schema.GroupVersion{Group: group, Version: version}
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "/")
	return schema.GroupVersion{Version: version}
}

// backends returns the connections to the other API servers that APIServices refer to, by group version. The caller
// owns the map.
func (a *Aggregator) backends() map[schema.GroupVersion]*backend {
	return maps.Clone(a.current.Load().remote)
}
