package apiserver

import (
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/value"

	"hyperkube/components/apiserver/connect"
	"hyperkube/components/apiserver/discovery"
	"hyperkube/components/apiserver/filters"
	"hyperkube/components/apiserver/health"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/serving/zpages"
)

// Config is the configuration of a Server: where it stores objects, what it serves, and who may access it.
//
// Size: one field for each setting or collaborator of the API server. Only the package compose fills it in, except in tests.
type Config struct {
	// Etcd is the client of the main etcd, over the network or in process. The server does not
	// close it.
	Etcd *clientv3.Client
	// EtcdPrefix is the prefix of all keys. Empty means "/registry".
	EtcdPrefix string
	// EtcdOverrides are clients of other etcds that store individual built-in resources. This is not
	// possible for services, ipaddresses and servicecidrs, because they are written in one
	// transaction.
	EtcdOverrides map[schema.GroupResource]*clientv3.Client
	// Transformer returns the encryption at rest for the objects of a resource, or nil if they are stored as plain
	// text. If the function itself is nil, nothing is encrypted.
	Transformer func(schema.GroupResource) value.Transformer
	// Resources are the served resources. Nil means all built-in ones.
	Resources []*api.Resource
	// Adopt replaces the Adopt functions of built-in resources. Such a function fills fields of a stored object that
	// older servers did not store; it is set here if the values depend on the cluster's configuration. It is ignored
	// if Resources is set.
	Adopt map[schema.GroupResource]func(api.Object)
	// Disabled reports whether a built-in resource is disabled. It may be nil.
	Disabled func(schema.GroupVersionResource) bool
	// EventTTL is the lifetime of events. Zero means one hour.
	EventTTL time.Duration

	// Listener accepts TLS connections. If it is nil, the server is only reachable in process. The
	// server closes it.
	Listener net.Listener
	// CertFile and KeyFile are the serving certificate and its key. They are reloaded when they
	// change.
	CertFile, KeyFile string
	// ClientCAs verify client certificates if Authenticator is nil. They are also announced to
	// clients in the TLS handshake.
	ClientCAs *x509.CertPool

	// TLS contains TLS settings besides the serving certificate.
	TLS TLSConfig

	// Authenticator authenticates requests. Nil means client certificates signed by ClientCAs, with
	// the common name as user and the organizations as groups.
	Authenticator authenticator.Request
	// Authorizer authorizes requests. Nil means that only system:masters is allowed, without
	// restrictions.
	Authorizer authorizer.Authorizer
	// Admission mutates and validates write requests. Nil means that all are admitted.
	Admission admission.Interface

	// Limiter limits concurrent requests. Nil means no limit.
	Limiter filters.Limiter
	// Auditor records requests. Nil means no auditing.
	Auditor filters.Auditor
	// Tracer starts the spans of requests. Nil means no traces.
	Tracer trace.Tracer
	// Limits contains timeouts and maximum sizes of requests and connections.
	Limits Limits

	// Extend, unless nil, is called by New with the registry before anything is served. It adds
	// hooks, actions and streams to resources (see package registry).
	Extend func(*registry.Registry) error

	// Paths are additional handlers behind the same filter chain. A path that ends with a slash
	// includes all paths below it.
	Paths map[string]http.Handler
	// External is the external host and port of this server, e.g. "192.0.2.1:6443". It is part of
	// URLs in discovery, which are left out if it is empty.
	External string
	// Aggregation, unless nil, proxies requests to aggregated API servers.
	Aggregation Aggregation
	// ReadyChecks are startup checks. They are added to /readyz, /healthz and /livez; /livez ignores their failures
	// for LivezGrace after the start. Empty means one check of the store's caches that are filled at startup.
	ReadyChecks []health.Check
	// WorkChecks are added to /readyz and /healthz but not to /livez, OnlyReadyChecks only to /readyz.
	WorkChecks, OnlyReadyChecks []health.Check

	// Kubelet configures connections to kubelets for logs, exec and similar requests.
	Kubelet KubeletConfig

	// BookmarkEvery is the interval of bookmarks for watches that request them. Zero means one
	// minute.
	BookmarkEvery time.Duration
	// Profiling serves /debug/pprof.
	Profiling bool
	// Flags are the command-line flags of the server for /flagz. It may be nil.
	Flags zpages.Flags
	// Level is the log level that /debug/flags/v changes if Profiling is set. Nil disables that.
	Level *slog.LevelVar
	// Log receives errors. Nil means slog's default.
	Log *slog.Logger
}

// Limits contains the limits for requests and connections. Zero values mean upstream's defaults.
type Limits struct {
	// Request is the timeout of requests that are not long-running. Zero means one minute.
	Request time.Duration
	// Watch is the minimum duration of watches without a timeout of their client. Zero means 30
	// minutes.
	Watch time.Duration
	// SlowReader is how long a watch waits for a client that does not read pending data before the server closes the
	// watch. Zero means one minute.
	SlowReader time.Duration
	// Streams is the maximum number of concurrent streams per HTTP/2 connection. Zero means 250.
	Streams int
	// StreamBytes limits the bytes per second of each connection of exec, attach, port-forward and
	// proxy in each direction. Zero means no limit.
	StreamBytes int64
	// Stored is the size in bytes above which etcd certainly rejects an object. Custom resources above it are
	// rejected before they are processed. Zero means 2 MiB, the maximum message size of etcd's remote client.
	Stored int64
	// ShutdownDelay is how long the server continues to serve after shutdown was requested. During
	// that time /readyz fails, so that load balancers stop sending requests to it.
	ShutdownDelay time.Duration
	// LivezGrace is how long after startup /livez ignores startup checks (Config.ReadyChecks) that have not passed
	// yet.
	LivezGrace time.Duration
	// Guard contains the settings for CORS, HSTS, and closing HTTP/2 connections so that load balancers distribute
	// them.
	Guard filters.Guard
}

// Aggregation is the part of the aggregator that the HTTP server uses: it proxies requests to aggregated API servers
// and adds their APIs to discovery.
type Aggregation interface {
	discovery.Aggregation
	// Handler returns the handler for a path below /api or /apis if another server serves it, and
	// nil otherwise. It is called for every request.
	Handler(path string) http.Handler
	// Ready is closed once all APIServices that existed at startup have been processed.
	Ready() <-chan struct{}
}

// KubeletConfig configures how the API server connects to kubelets, for logs, exec, attach, port-forward and the
// proxy of nodes.
type KubeletConfig = connect.KubeletConfig
