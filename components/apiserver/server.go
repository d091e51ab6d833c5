package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver/admission/objects"
	"hyperkube/components/apiserver/connect"
	"hyperkube/components/apiserver/customresource"
	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/filters"
	"hyperkube/components/apiserver/handlertransport"
	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/podactions"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/serving/h2"
	"hyperkube/internal/store"
)

// Server is a Kubernetes API server: the store, the registry of resources, and the chain of HTTP
// handlers. New creates it, Run serves requests.
type Server struct {
	cfg            Config
	log            *slog.Logger
	store          *store.Store
	overrideStores []*store.Store // the stores of cfg.EtcdOverrides
	registry       *registry.Registry
	fields         *fieldmanager.Managers
	// custom is nil if CustomResourceDefinitions are not served.
	custom  *customresource.Server
	metrics *metrics.Metrics
	rest    *rest.Handler
	chain   *filters.Chain
	// stopping is canceled when Run starts to close connections, after Limits.ShutdownDelay. This closes all watches.
	stopping context.Context //nolint:containedctx // the context of the server outlives calls
	stop     context.CancelFunc
	ready    chan struct{}
	// shuttingDown is closed when shutdown is requested. From then on /readyz fails.
	shuttingDown chan struct{}
	// known is set once all resources of this server and of aggregated servers are known, see
	// startup.go.
	known   atomic.Bool
	created time.Time
}

// New validates cfg, applies defaults and creates the server. No goroutine runs yet, but clients within the process
// can be created immediately. Their requests wait until Run has filled the caches that they need.
func New(cfg Config) (*Server, error) {
	if cfg.Etcd == nil {
		return nil, errors.New("the API server requires an etcd client")
	}
	if cfg.Listener != nil && (cfg.CertFile == "" || cfg.KeyFile == "") {
		return nil, errors.New("the API server requires a serving certificate and its key")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.EventTTL == 0 {
		cfg.EventTTL = time.Hour
	}
	if cfg.Resources == nil {
		cfg.Resources = append(catalog.Resources(), podactions.Bindings())
		for _, r := range cfg.Resources {
			if adopt := cfg.Adopt[r.GroupResource()]; adopt != nil {
				r.Adopt = adopt
			}
		}
	}
	if cfg.Disabled != nil {
		cfg.Resources = slices.DeleteFunc(slices.Clone(cfg.Resources), func(r *api.Resource) bool { return cfg.Disabled(r.GVR()) })
	}
	s := &Server{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), shuttingDown: make(chan struct{}), created: time.Now()}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.metrics = metrics.New()
	s.metrics.Served = s.serves
	var err error
	if s.store, err = store.New(store.Config{Client: cfg.Etcd, Prefix: cfg.EtcdPrefix, OnRequest: s.metrics.Etcd, OnWait: s.metrics.Waited, OnFill: s.metrics.Filled, OnLeaseFull: s.metrics.Leased, Log: cfg.Log}); err != nil {
		return nil, err
	}
	apart, err := s.openOverrideStores()
	if err != nil {
		return nil, err
	}
	s.registry, err = registry.New(registry.Config{
		Store:         s.store,
		StoreOverride: func(gr schema.GroupResource) *store.Store { return apart[gr] },
		Resources:     cfg.Resources,
		Transformer:   cfg.Transformer,
		TTL: func(gr schema.GroupResource) int64 {
			if gr.Resource == "events" {
				return int64(cfg.EventTTL / time.Second)
			}
			return 0
		},
	})
	if err != nil {
		return nil, err
	}
	if cfg.Extend != nil {
		if err := cfg.Extend(s.registry); err != nil {
			return nil, err
		}
	}
	s.fields = fieldmanager.New(func() []*api.Resource {
		var all []*api.Resource
		for _, r := range s.registry.Resources() {
			all = append(all, r.Resource)
		}
		return all
	})
	if s.registry.Lookup(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")) != nil {
		s.custom, err = customresource.New(customresource.Config{Registry: s.registry, Fields: s.fields, Log: cfg.Log})
		if err != nil {
			return nil, err
		}
	}
	etcds := []*clientv3.Client{cfg.Etcd}
	for client := range s.Stores() {
		if client != cfg.Etcd {
			etcds = append(etcds, client)
		}
	}
	s.metrics.RegisterSize(etcds...)
	if err := s.compose(); err != nil {
		return nil, err
	}
	return s, nil
}

// openOverrideStores creates a store for each etcd in Config.EtcdOverrides, and returns the stores by resource.
// Resources with the same etcd client share a store. It returns an error for services, ipaddresses and servicecidrs,
// which must be in the main etcd.
func (s *Server) openOverrideStores() (map[schema.GroupResource]*store.Store, error) {
	made := map[*clientv3.Client]*store.Store{}
	apart := map[schema.GroupResource]*store.Store{}
	for gr, client := range s.cfg.EtcdOverrides {
		switch gr.String() {
		case "services", "ipaddresses.networking.k8s.io", "servicecidrs.networking.k8s.io":
			return nil, fmt.Errorf("%s cannot be stored in a separate etcd: services and their addresses are written in one transaction", gr)
		}
		if made[client] == nil {
			one, err := store.New(store.Config{Client: client, Prefix: s.cfg.EtcdPrefix, OnRequest: s.metrics.Etcd, OnWait: s.metrics.Waited, OnFill: s.metrics.Filled, OnLeaseFull: s.metrics.Leased, Log: s.cfg.Log})
			if err != nil {
				return nil, err
			}
			made[client] = one
			s.overrideStores = append(s.overrideStores, one)
		}
		apart[gr] = made[client]
	}
	return apart, nil
}

// serves reports whether the resource and subresource of a request exist. The metrics use it to
// limit the values of their labels to existing resources.
func (s *Server) serves(info *apirequest.RequestInfo) bool {
	res := s.registry.Lookup(schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource})
	if res == nil {
		return false
	}
	sub := info.Subresource
	_, view := res.Views[sub]
	return sub == "" || view || sub == "scale" && res.Scale != nil || res.Action(sub) != nil || res.Stream(sub) != nil
}

// compose creates the handler of API resources and the filter chain in front of all handlers.
func (s *Server) compose() error {
	authn, authz := s.cfg.Authenticator, s.cfg.Authorizer
	if authn == nil {
		authn = clientCertAuthenticator{s.cfg.ClientCAs}
	}
	if authz == nil {
		authz = superusersOnly
	}
	var err error
	s.rest, err = rest.New(rest.Config{
		Registry:   s.registry,
		Fields:     s.fields,
		Admission:  s.cfg.Admission,
		Objects:    objects.New(s.registry),
		Authorizer: authz,
		Stopping:   s.stopping,
		Metrics:    s.metrics,
		MinWatch:   s.cfg.Limits.Watch,
		MaxStored:  s.cfg.Limits.Stored,

		RecordTraces:  s.cfg.Tracer != nil,
		BookmarkEvery: s.cfg.BookmarkEvery,
		SlowReader:    s.cfg.Limits.SlowReader,
		Log:           s.log,
	})
	if err != nil {
		return err
	}
	streams, err := connect.Streams(connect.Config{
		Registry: s.registry, Kubelet: s.cfg.Kubelet, Authorizer: authz, Error: s.rest.Error,
		MaxBytesPerSec: s.cfg.Limits.StreamBytes, Metrics: s.metrics,
	})
	if err != nil {
		return err
	}
	if err := s.registry.AddStreams(streams...); err != nil {
		return err
	}
	if err := s.registry.AddActions(podactions.Actions(s.registry)...); err != nil {
		return err
	}
	s.chain, err = filters.New(filters.Config{
		Authenticator: authn,
		Authorizer:    authz,
		Metrics:       s.metrics,
		Timeout:       s.cfg.Limits.Request,
		Limiter:       s.cfg.Limiter,
		Auditor:       s.cfg.Auditor,
		Tracer:        s.cfg.Tracer,
		Guard:         s.cfg.Limits.Guard,
		Error:         s.rest.Error,
		Log:           s.log,
	}, s.routes())
	return err
}

// Registry returns the registry of the served API resources.
func (s *Server) Registry() *registry.Registry { return s.registry }

// Stores returns the stores of the server by their etcd clients: the main one, and those of Config.EtcdOverrides
// whose resources are served.
func (s *Server) Stores() map[*clientv3.Client]*store.Store {
	all := map[*clientv3.Client]*store.Store{s.cfg.Etcd: s.store}
	for gr, client := range s.cfg.EtcdOverrides {
		if c := s.registry.Collection(gr); c != nil {
			all[client] = c.Store()
		}
	}
	return all
}

// Handler returns the complete filter chain, which serves network requests: it authenticates,
// authorizes and handles them.
func (s *Server) Handler() http.Handler { return s.chain }

// Metrics returns the metrics of the server, so that other parts of the process can add theirs.
func (s *Server) Metrics() *metrics.Metrics { return s.metrics }

// Ready returns a channel that is closed by Run once the server can handle requests: namespaces can be read from etcd
// and all custom resources are served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// ClientConfig returns the configuration of an in-process client that acts as a user with groups.
// system:authenticated is added to the groups. Requests pass the same filter chain as network requests, except for
// authentication, so code that has access to the server can act as any user. The client does not limit its request
// rate.
func (s *Server) ClientConfig(userName string, groups ...string) *clientrest.Config {
	u := &user.DefaultInfo{Name: userName, Groups: groups}
	if !slices.Contains(groups, user.AllAuthenticated) {
		u.Groups = append(slices.Clone(groups), user.AllAuthenticated)
	}
	return &clientrest.Config{
		Host: "http://kubernetes.in-memory",
		Transport: &handlertransport.Transport{
			Handler: s.chain,
			Context: func(ctx context.Context) context.Context {
				if trace.SpanContextFromContext(ctx).IsValid() {
					ctx = trace.ContextWithSpan(ctx, nil) // the client's span is of another component; the request has its header
				}
				return filters.WithInProcessUser(ctx, u)
			},
			Short: isShort,
		},
		// API Priority and Fairness replaces client-side rate limits.
		QPS: -1,
	}
}

// isShort reports whether the response to an in-process request is complete in one piece, so that the in-process
// client can buffer it. Watches, logs, proxied and upgraded connections, and requests that cannot be parsed are not
// short.
func isShort(req *http.Request) bool {
	if req.Header.Get("Upgrade") != "" {
		return false
	}
	info, err := request.Parse(req.Method, req.URL, req.URL.Query())
	return err == nil && !request.LongRunning(info)
}

// Run serves until ctx is canceled, the listener fails or a part of the server fails. It then continues to serve for
// Limits.ShutdownDelay, unless something failed, closes watches, waits at most graceTime for other requests, and
// stops the stores last. It returns nil after ctx was canceled, unless stopping failed.
func (s *Server) Run(ctx context.Context) error {
	var g lifecycle.Group
	// Requests in progress need the store after ctx is canceled.
	g.Start(context.WithoutCancel(ctx), "store", s.store)
	for _, one := range s.overrideStores {
		g.Start(context.WithoutCancel(ctx), "store of single resources", one)
	}
	if s.custom != nil {
		g.Start(context.WithoutCancel(ctx), "custom resources", s.custom)
	}
	var server *http.Server
	served := make(chan error, 1)
	if s.cfg.Listener != nil {
		var err error
		if server, err = s.httpServer(ctx); err != nil {
			return errors.Join(err, g.Stop())
		}
		go func() { served <- server.ServeTLS(h2.Listen(s.cfg.Listener), "", "") }()
	}
	go s.fields.Warm()

	var err error
	select {
	case <-s.warm():
		close(s.ready)
		select {
		case <-ctx.Done():
		case err = <-g.Failed():
		case err = <-served:
			server = nil
		}
	case <-ctx.Done():
	case err = <-g.Failed():
	case err = <-served:
		server = nil
	}
	close(s.shuttingDown)
	if delay := s.cfg.Limits.ShutdownDelay; delay > 0 && err == nil {
		time.Sleep(delay) // --shutdown-delay-duration
	}
	s.stop()
	if server != nil {
		// Requests in progress get a grace period.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		if server.Shutdown(grace) != nil {
			server.Close()
		}
		cancel()
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, g.Stop())
}

// warm starts to fill the cache of namespaces, which most requests need; other caches are filled at first use. The
// returned channel is closed once this is done, which shows that etcd can be read, and once all custom resources are
// served. If namespaces are not served, it is closed immediately; if the server stops first, it may never be closed.
func (s *Server) warm() <-chan struct{} {
	c := s.registry.Collection(schema.GroupResource{Resource: "namespaces"})
	if c == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	c.Warm()
	if s.custom == nil {
		return c.Ready()
	}
	both := make(chan struct{})
	go func() {
		for _, ready := range []<-chan struct{}{c.Ready(), s.custom.Ready()} {
			select {
			case <-ready:
			case <-s.stopping.Done():
				return
			}
		}
		close(both)
	}()
	return both
}

// responseGrace is the time that a client has to send its body and read the response beyond the request timeout,
// before the server closes the stream.
const responseGrace = 5 * time.Second

// httpServer returns the HTTP server for network clients, with its timeouts, TLS and HTTP/2
// settings. It returns an error if the serving certificate cannot be read.
func (s *Server) httpServer(ctx context.Context) (*http.Server, error) {
	secure, err := s.tlsConfig()
	if err != nil {
		return nil, err
	}
	limit := s.cfg.Limits.Request
	if limit == 0 {
		limit = time.Minute
	}
	streams := s.cfg.Limits.Streams
	if streams == 0 {
		streams = 250
	}
	server := &http.Server{
		Handler: s.chain,
		// Slow request bodies and slow readers are aborted shortly after the request timeout.
		// Streaming requests remove these deadlines.
		ReadTimeout:       limit + responseGrace,
		WriteTimeout:      limit + responseGrace,
		TLSConfig:         secure,
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ErrorLog:          log.New(s.metrics.Handshakes(s.log), "", 0),
	}
	if s.cfg.TLS.NoHTTP2 {
		// Otherwise net/http would offer its own HTTP/2.
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		return server, nil
	}
	h2.Configure(server, h2.Config{
		MaxStreams: uint32(streams),
		// A connection whose client does not read is closed.
		WriteTimeout: limit,
		// Pings detect connections whose client has disappeared.
		PingAfter: 30 * time.Second, PingTimeout: 15 * time.Second,
		Log: s.log,
	})
	return server, nil
}
