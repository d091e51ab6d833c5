package apiserver

import (
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	"hyperkube/internal/zpages"
)

// Config of a Server.
type Config struct {
	// Etcd is where objects are: over the network, or in process. The server
	// does not close it.
	Etcd *clientv3.Client
	// EtcdPrefix of all keys; "/registry" when empty.
	EtcdPrefix string
	// EtcdApart are other etcds that have the objects of single built-in
	// resources. Of services, ipaddresses and servicecidrs they cannot: those
	// are written together.
	EtcdApart map[schema.GroupResource]*clientv3.Client
	// Transformer returns how the objects of a resource are encrypted, or
	// nil. Nil: nothing is encrypted.
	Transformer func(schema.GroupResource) value.Transformer
	// Resources are served; nil means all that are built in.
	Resources []*api.Resource
	// Adopt is set as Adopt of the resources that are built in, where it knows of the
	// cluster what they do not. It is not looked at with Resources.
	Adopt map[schema.GroupResource]func(api.Object)
	// Without tells which of them are not served. It may be nil.
	Without func(schema.GroupVersionResource) bool
	// EventTTL is how long events are kept; zero means an hour.
	EventTTL time.Duration

	// Listener accepts TLS connections; nil: the server is reached in memory
	// alone. The server closes it.
	Listener net.Listener
	// CertFile and KeyFile are the serving certificate; they are read again
	// when they change.
	CertFile, KeyFile string
	// ClientCAs verify client certificates, for Authenticator nil. Which
	// certificates are asked for is told to clients in the handshake.
	ClientCAs *x509.CertPool

	// TLS says more about connections.
	TLS TLSConfig

	// Authenticator tells who sends a request. Nil: client certificates of
	// ClientCAs by common name and organisations.
	Authenticator authenticator.Request
	// Authorizer tells what they may do. Nil: system:masters may do all,
	// others nothing.
	Authorizer authorizer.Authorizer
	// Admission may change or refuse writes. Nil: all are admitted.
	Admission admission.Interface

	// Limiter decides when requests are worked on; nil: at once.
	Limiter filters.Limiter
	// Auditor records requests; nil: nobody does.
	Auditor filters.Auditor
	// Limits of what requests and connections may take.
	Limits Limits

	// Extend, unless nil, is called by New with the registry before anything
	// is served, to add hooks, actions and streams.
	Extend func(*registry.Registry) error

	// Paths are served too, behind the same chain; those that end with a
	// slash with all below them.
	Paths map[string]http.Handler
	// External is the host and port by which documents name this server, e.g.
	// "192.0.2.1:6443". Empty: they do not.
	External string
	// Aggregation, unless nil, knows the APIs that other servers serve.
	Aggregation Aggregation
	// ReadyChecks add to /livez, once they had their time to begin to hold, and
	// to /readyz.
	ReadyChecks []health.Check
	// WorkChecks add to /readyz and /healthz, OnlyReadyChecks to /readyz alone.
	WorkChecks, OnlyReadyChecks []health.Check

	// Kubelet says how to reach kubelets for logs, exec and the like.
	Kubelet KubeletConfig

	// BookmarkEvery is how often watches that asked for bookmarks get one;
	// zero means a minute.
	BookmarkEvery time.Duration
	// Profiling serves /debug/pprof.
	Profiling bool
	// Flags are those with which the server was started; it may be nil.
	Flags zpages.Flags
	// Level is changed by /debug/flags/v, with Profiling; nil: it is as it is.
	Level *slog.LevelVar
	// Log receives what goes wrong; nil: slog's default.
	Log *slog.Logger
}

// Limits of what requests and connections may take. Zeros are upstream's
// defaults.
type Limits struct {
	// Request is how long a request that does not stream may take; zero means
	// a minute.
	Request time.Duration
	// Watch is how long watches last at least whose clients do not say; zero
	// means half an hour.
	Watch time.Duration
	// SlowReader is for how long a watch waits for its client to take what it
	// was sent before it is cut off; zero means a minute.
	SlowReader time.Duration
	// Streams of one HTTP/2 connection at the same time; zero means 250.
	Streams int
	// StreamBytes is how many bytes a second each connection of exec, attach,
	// port-forward and proxy may take in each direction; zero: any number.
	StreamBytes int64
	// ShutdownDelay is for how long the server goes on as ever after it was
	// told to stop, but is not ready, so that load balancers notice.
	ShutdownDelay time.Duration
	// LivezGrace is for how long /livez does not mind what has not finished
	// yet at the start.
	LivezGrace time.Duration
	// Guard is what is done for browsers and load balancers.
	Guard filters.Guard
}

// Aggregation knows the APIs that other servers serve.
type Aggregation interface {
	discovery.Aggregation
	// Handler returns who answers requests for a path below /api or /apis if
	// that is another server, else nil. It is asked for every request.
	Handler(path string) http.Handler
	// Ready is closed once it knows all those of when it began.
	Ready() <-chan struct{}
}

// KubeletConfig says how to reach kubelets.
type KubeletConfig = connect.KubeletConfig
