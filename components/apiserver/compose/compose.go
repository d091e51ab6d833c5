// Package compose assembles the complete API server: the HTTP server, authentication (authn),
// authorization (authz), admission, allocation of Service IPs, and the objects that every cluster
// starts with. Both `hyperkube up` and kube-apiserver use it.
package compose

import (
	"context"
	"crypto"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utiladmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	clientrest "k8s.io/client-go/rest"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/admission"
	"hyperkube/components/apiserver/admission/dynamic"
	"hyperkube/components/apiserver/aggregation"
	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/authz"
	"hyperkube/components/apiserver/fairness"
	"hyperkube/components/apiserver/health"
	"hyperkube/components/apiserver/inprocess"
	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/openapi"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/reviews"
	"hyperkube/components/apiserver/serviceip"
	"hyperkube/internal/api"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/base/version"
	"hyperkube/internal/client"
	"hyperkube/internal/credentials/encryption"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/serving/componentmetrics"
	"hyperkube/internal/serving/zpages"
)

// Config is the configuration of a Server. Empty fields disable a feature, or select upstream's
// default where the field's comment mentions it.
//
// Size: one field for each setting of the API server that a flag of kube-apiserver or the cluster command
// selects.
type Config struct {
	// Etcd is the client of the main etcd. The server does not close it.
	Etcd *clientv3.Client
	// EtcdPrefix is the prefix of all keys. Empty means "/registry".
	EtcdPrefix string
	// EtcdOverrides are clients of other etcds that store individual resources. The server does not
	// close them.
	EtcdOverrides map[schema.GroupResource]*clientv3.Client
	// Encryption configures encryption at rest. Nil means no encryption. The caller stops it.
	Encryption *encryption.Transformers
	// CompactionInterval is the interval of etcd compactions. Zero means five minutes, a negative
	// value disables them.
	CompactionInterval time.Duration
	// EventTTL is the lifetime of events. Zero means one hour.
	EventTTL time.Duration

	// Listener accepts TLS connections. The server closes it. CertFile and KeyFile are the serving
	// certificate and its key.
	Listener          net.Listener
	CertFile, KeyFile string
	// ClientCAFile contains the CAs of client certificates. Empty disables authentication with
	// certificates.
	ClientCAFile string
	// FrontProxyCAFile contains the CAs of the client certificates of front proxies, which
	// authenticate users themselves and name them in headers. FrontProxy contains the names of
	// these headers.
	FrontProxyCAFile string
	FrontProxy       authn.FrontProxy
	// ProxyCertFile and ProxyKeyFile are the client certificate with which requests are proxied to
	// aggregated servers. If empty, no certificate is sent.
	ProxyCertFile, ProxyKeyFile string
	// EndpointRouting connects to aggregated servers at the addresses of their pods instead of
	// their cluster IP.
	EndpointRouting bool
	// LocalAPIs are the APIs of other components in this process.
	LocalAPIs []aggregation.LocalAPI
	// TokenFile is a CSV file of static tokens with their users.
	TokenFile string
	// BootstrapTokens enables authentication with the bootstrap tokens of joining nodes.
	BootstrapTokens bool
	// NoAnonymous rejects requests without credentials. Otherwise their user is system:anonymous, to which the
	// default RBAC policy grants only the health and version pages.
	NoAnonymous bool

	// Issuers are the accepted issuers of service account tokens. The first one is that of new
	// tokens. Key signs new tokens, Keys verify all tokens.
	Issuers []string
	Key     crypto.Signer
	Keys    *tokens.KeySet
	// Audiences are the identifiers of this API server in tokens. Nil means the first issuer.
	Audiences []string

	Security

	// AuthorizationModes are the authorizers in the order in which they are asked. Nil means Node
	// and RBAC.
	AuthorizationModes []string
	// EnableAdmission and DisableAdmission are the names of admission plugins that are enabled or
	// disabled in addition to the defaults.
	EnableAdmission, DisableAdmission []string
	// AdmissionConfigFile is the file with the AdmissionConfiguration of the plugins. Empty means
	// none.
	AdmissionConfigFile string
	// TolerationSeconds are added to pods: how long they tolerate that their node is not ready or
	// unreachable. Nil means five minutes each.
	TolerationSeconds *admission.TolerationSeconds
	// Disabled reports whether a built-in resource is not served. Nil means that all are served.
	Disabled func(schema.GroupVersionResource) bool

	// ServiceCIDRs are the default ranges of Service IPs: one, or one per IP family. NodePorts is
	// the range of node ports.
	ServiceCIDRs []netip.Prefix
	NodePorts    utilnet.PortRange
	// Advertise is the address at which clients reach this server: the endpoint of the Service
	// kubernetes.
	Advertise netip.AddrPort
	// External is the external host of this server, used in generated URLs, with a port if that
	// differs from Advertise's. Empty means Advertise.
	External string
	// Shared means that other API servers may use the same etcd. All of them are endpoints of the
	// Service kubernetes.
	Shared bool
	// NoEndpoints disables reconciliation of the endpoints of the Service kubernetes.
	NoEndpoints bool
	// ServiceNodePort is the node port of the Service kubernetes. Zero means none.
	ServiceNodePort int32

	// InFlight limits concurrent requests, Limits limits the resources of requests. Audit
	// configures auditing.
	InFlight InFlight
	Limits   apiserver.Limits
	Audit    audit.Config

	// Tracing configures the export of traces. Nil disables it.
	Tracing *tracingapi.TracingConfiguration

	// Components are the health checks of the components "scheduler" and "controller-manager", for
	// ComponentStatuses. Missing ones are checked over HTTPS on this host.
	Components map[string]func(context.Context) (string, error)

	// Kubelet configures connections to kubelets. Profiling serves /debug/pprof.
	Kubelet   apiserver.KubeletConfig
	Profiling bool
	// Flags and Level are as in apiserver.Config.
	Flags zpages.Flags
	Level *slog.LevelVar
	// Log receives log messages. Nil means slog's default.
	Log *slog.Logger
}

// Server is the complete API server: the HTTP server with everything that it needs for
// authentication, authorization and admission, and the components that maintain its own objects.
type Server struct {
	cfg                 Config
	server              *apiserver.Server
	authn               *authn.Authenticator
	authz               *authz.Authorizer
	admission           *admission.Chain
	dynamic             *dynamic.Plugins
	addresses           *serviceip.Allocator
	fairness            *fairness.Limiter // nil if disabled
	audit               *audit.Auditor    // nil if auditing is disabled
	aggregator          *aggregation.Aggregator
	authConfigPublisher *aggregation.AuthConfigPublisher
	ownClients          *client.Clients
	source              *inprocess.Source
	traces              *tracing.Provider
	ready               chan struct{}
}

// instrumentationScope is the instrumentation scope of the spans of requests.
const instrumentationScope = "hyperkube/components/apiserver"

type (
	// lateAuthenticator and the other wrappers stand for parts of the server that need a client of the same server.
	// New passes an empty wrapper to the server when it creates the server, and sets the wrapped part before the
	// server runs.
	lateAuthenticator struct{ authenticator.Request }
	lateAuthorizer    struct{ authorizer.Authorizer }
	lateHandler       struct{ http.Handler }
	lateAggregation   struct{ *aggregation.Aggregator }
)

// New validates cfg and assembles a Server. Nothing runs before Run is called, but clients can be
// created immediately. Their requests wait for Run.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Issuers) == 0 || cfg.Key == nil || cfg.Keys == nil {
		return nil, errors.New("the API server requires an issuer and keys for service account tokens")
	}
	s := &Server{cfg: cfg, ready: make(chan struct{})}
	who, may, admit := &lateAuthenticator{}, &lateAuthorizer{}, &lateAdmission{}
	others := &lateAggregation{}
	docs := &lateHandler{}
	paths := cfg.discovery()
	paths["/openapi/"] = docs
	limiter := &lateLimiter{}
	paths[fairness.DebugPath] = s.debugPaths()
	var err error
	cfg.TLS.ClientCAs = who.clientCAs
	serverConfig := apiserver.Config{
		Etcd: cfg.Etcd, EtcdPrefix: cfg.EtcdPrefix, EtcdOverrides: cfg.EtcdOverrides, Disabled: cfg.Disabled, Transformer: cfg.Encryption.For, EventTTL: cfg.EventTTL,
		Listener: cfg.Listener, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile,
		Authenticator: who, Authorizer: may, Admission: admit,
		Kubelet: cfg.Kubelet, Profiling: cfg.Profiling, Flags: cfg.Flags, Level: cfg.Level, Log: cfg.Log,
		Extend: s.extend, Paths: paths, Aggregation: others, TLS: cfg.TLS, External: cfg.external(),
		ReadyChecks: s.readyChecks(), WorkChecks: s.encryptionChecks(),
		OnlyReadyChecks: []health.Check{health.Closed("informer-sync", s.ready)},
		Limiter:         limiter, Limits: cfg.Limits,
		Adopt: map[schema.GroupResource]func(api.Object){{Resource: "services"}: serviceip.Adopt(cfg.ServiceCIDRs)},
	}
	if s.traces, err = tracing.New(cfg.Tracing, "apiserver", ""); err != nil {
		return nil, err
	}
	serverConfig.Tracer = s.traces.Tracer(instrumentationScope)
	if s.audit, err = audit.New(cfg.Audit); err != nil {
		return nil, err
	}
	if s.audit != nil {
		serverConfig.Auditor = s.audit
	}
	if s.server, err = apiserver.New(serverConfig); err != nil {
		return nil, err
	}
	if err := s.server.Metrics().Registry().Register(s.addresses); err != nil {
		return nil, err
	}
	documents := openapi.New(s.server.Registry(), version.Get().GitVersion)
	docs.Handler = documents
	s.source = inprocess.New(s.server.Registry(), cfg.Log)
	// Policy parameters may be of any kind, so this client needs superuser permissions.
	if s.ownClients, err = s.clients(s.source, nil, "kube-apiserver", "system:apiserver", "system:masters"); err != nil {
		return nil, err
	}
	if err := s.server.Metrics().Registry().Register(s.ownClients.Requests); err != nil {
		return nil, err
	}
	if err := s.secure(who, may, admit); err != nil {
		return nil, err
	}
	if err := s.limit(limiter); err != nil {
		return nil, err
	}
	if err := s.aggregate(); err != nil {
		return nil, err
	}
	others.Aggregator = s.aggregator
	documents.Aggregate(s.aggregator)
	return s, nil
}

// external returns the host and port with which clients outside of the cluster reach this server,
// for generated URLs. It returns "" if neither External nor Advertise is set.
func (c *Config) external() string {
	switch {
	case c.External == "" && c.Advertise.IsValid():
		return c.Advertise.String()
	case c.External == "":
		return ""
	}
	if _, _, err := net.SplitHostPort(c.External); err == nil {
		return c.External
	}
	return net.JoinHostPort(c.External, strconv.Itoa(int(c.Advertise.Port())))
}

// discovery returns handlers of the OpenID discovery documents, by path, with which other parties verify service
// account tokens. If the first issuer, the URL of the keys or the keys are not suitable, it logs the reason and
// returns none.
func (c *Config) discovery() map[string]http.Handler {
	host := c.external()
	if host == "" {
		host = "kubernetes.default.svc"
	}
	uri := c.JWKSURI
	if uri == "" {
		uri = "https://" + host + tokens.JWKSPath
	}
	docs, err := tokens.NewDiscovery(c.Issuers[0], uri, c.Keys)
	if err != nil {
		c.Log.Warn("OpenID discovery documents of the service account issuer are not served; systems outside of the cluster cannot verify service account tokens with them, the cluster is not affected: correct the issuer, the JWKS URI or the keys and restart the API server", "issuer", c.Issuers[0], "err", err)
		return map[string]http.Handler{}
	}
	return map[string]http.Handler{
		tokens.ConfigurationPath: http.HandlerFunc(docs.Configuration),
		tokens.JWKSPath:          http.HandlerFunc(docs.JWKS),
	}
}

// secure creates the authenticator, the authorizer and the admission chain, and sets them in the wrappers who, may
// and admit, which New has already passed to the HTTP server. It also adds the review APIs, such as TokenReview. It
// returns an error if a configuration file is invalid.
func (s *Server) secure(who *lateAuthenticator, may *lateAuthorizer, admit *lateAdmission) error {
	cfg, reg := s.cfg, s.server.Registry()
	audiences := cfg.Audiences
	if len(audiences) == 0 {
		audiences = cfg.Issuers[:1]
	}
	pods, err := inprocess.NewPods(reg, cfg.Log)
	if err != nil {
		return err
	}
	objects := tokens.CachedGetter(s.ownClients.Kube, s.ownClients.Informers, pods)
	usage, err := tokens.NewUsage(s.ownClients.Kube, s.server.Metrics().Registry(), cfg.Log)
	if err != nil {
		return err
	}
	verifier, err := tokens.NewVerifier(tokens.VerifierConfig{Issuers: cfg.Issuers, Keys: cfg.Keys, Audiences: audiences, Objects: objects, Usage: usage})
	if err != nil {
		return err
	}
	issuer, err := tokens.NewIssuer(tokens.IssuerConfig{
		Issuer: cfg.Issuers[0], Key: cfg.Key, Audiences: audiences, Objects: tokens.LiveGetter(s.ownClients.Kube),
		ExtendExpiration: !cfg.NoExtendedExpiration, MaxExpiration: cfg.MaxTokenExpiration,
	})
	if err != nil {
		return err
	}
	authnConfig := authn.Config{
		ClientCAFile: cfg.ClientCAFile, FrontProxyCAFile: cfg.FrontProxyCAFile, FrontProxy: cfg.FrontProxy,
		TokenFile: cfg.TokenFile, ServiceAccounts: verifier, Audiences: audiences,
		ConfigFile: cfg.AuthenticationConfigFile, OIDC: cfg.OIDC, Webhook: cfg.TokenWebhook, Issuers: cfg.Issuers,
		Anonymous: !cfg.NoAnonymous, Log: cfg.Log,
	}
	if cfg.BootstrapTokens {
		authnConfig.BootstrapTokens = s.ownClients.Kube
	}
	if s.authn, err = authn.New(authnConfig); err != nil {
		return err
	}
	s.authz, err = authz.New(authz.Config{
		Modes: cfg.AuthorizationModes, Informers: s.ownClients.Informers, Kube: s.ownClients.Kube, Pods: pods,
		ConfigFile: cfg.AuthorizationConfigFile, Webhook: cfg.AuthorizationWebhook, PolicyFile: cfg.PolicyFile, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	var files map[string][]byte
	if cfg.AdmissionConfigFile != "" {
		if files, err = admission.LoadConfiguration(cfg.AdmissionConfigFile); err != nil {
			return err
		}
	}
	s.dynamic, err = dynamic.New(dynamic.Config{
		Informers: s.ownClients.Informers, Kube: s.ownClients.Kube, Dynamic: s.ownClients.Dynamic, Authorizer: s.authz, Registry: reg,
		Files: files, Requests: s.ownClients.Requests,
	})
	if err != nil {
		return err
	}
	extra := maps.Clone(s.dynamic.All())
	extra["PolicyParams"] = admission.PolicyParams{Authorizer: s.authz, Kube: s.ownClients.Kube, Resource: func(gvk schema.GroupVersionKind) string {
		if r := reg.Kind(gvk); r != nil {
			return r.Plural
		}
		return ""
	}}
	s.admission, err = admission.New(admission.Config{
		Informers: s.ownClients.Informers, Kube: s.ownClients.Kube, Pods: pods, Authorizer: s.authz,
		Enable: cfg.EnableAdmission, Disable: cfg.DisableAdmission, Extra: extra,
		Files: files, Metrics: s.server.Metrics().Registry(), TolerationSeconds: cfg.TolerationSeconds,
		Kinds: func(gvk schema.GroupVersionKind) (string, bool) {
			if r := reg.Kind(gvk); r != nil {
				return r.Plural, bool(r.Scope)
			}
			return "", false
		},
		Last:   s.authz.Escalation(),
		Serves: func(gvr schema.GroupVersionResource) bool { return reg.Lookup(gvr) != nil },
	})
	if err != nil {
		return err
	}
	// Annotations of admission plugins are added to the request's audit event.
	who.Request, may.Authorizer, admit.Interface = s.authn, s.authz, utiladmission.WithAudit(s.admission)
	return reg.AddActions(reviews.Actions(reviews.Config{
		Tokens: s.authn, Audiences: audiences, Authorizer: s.authz, Rules: s.authz, Issuer: issuer,
	})...)
}

// extend adds to the registry what this package provides: allocation of Service IPs and node ports
// when Services are written, and ComponentStatuses. apiserver.New calls it before anything is
// served.
func (s *Server) extend(reg *registry.Registry) error {
	collection := func(group, resource string) schema.GroupResource {
		return schema.GroupResource{Group: group, Resource: resource}
	}
	var err error
	s.addresses, err = serviceip.New(serviceip.Config{
		Store:        reg.Store(),
		Services:     reg.Collection(collection("", "services")),
		IPAddresses:  reg.Collection(collection("networking.k8s.io", "ipaddresses")),
		ServiceCIDRs: reg.Collection(collection("networking.k8s.io", "servicecidrs")),
		CIDRs:        s.cfg.ServiceCIDRs, NodePorts: s.cfg.NodePorts, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	if s.cfg.Disabled == nil || !s.cfg.Disabled(corev1.SchemeGroupVersion.WithResource("componentstatuses")) {
		if err := s.components(reg); err != nil {
			return err
		}
	}
	return reg.AddHook(collection("", "services"), s.addresses.Hook)
}

// Clients returns clients that act as the given user within this process, without network connections. Their
// informers are fed directly from the watch cache, and their objects have no managed fields. agent is the user agent,
// which also becomes the name of the field manager.
func (s *Server) Clients(agent, userName string, groups ...string) (*client.Clients, error) {
	return s.MeasuredClients(nil, agent, userName, groups...)
}

// MeasuredClients is like Clients, but records the metrics of requests in requests, which several
// clients may share. If requests is nil, the clients have their own metrics.
func (s *Server) MeasuredClients(requests *componentmetrics.Requests, agent, userName string, groups ...string) (*client.Clients, error) {
	return s.clients(s.source.Trimmed(), requests, agent, userName, groups...)
}

// clients returns clients whose informers are fed by source. See Clients and MeasuredClients for
// the other parameters.
func (s *Server) clients(source client.Source, requests *componentmetrics.Requests, agent, userName string, groups ...string) (*client.Clients, error) {
	cfg := s.ClientConfig(userName, groups...)
	cfg.UserAgent = agent
	return client.New(client.Config{REST: cfg, Source: source, Requests: requests})
}

// ClientConfig returns the configuration of a client that acts as the given user within this process. Its requests
// are authorized and handled directly, without a network connection, and without authentication because the user is
// known.
func (s *Server) ClientConfig(userName string, groups ...string) *clientrest.Config {
	return s.server.ClientConfig(userName, groups...)
}

// Serves reports whether the server itself serves a resource, built-in or custom, at the moment. Resources of
// aggregated servers do not count.
func (s *Server) Serves(gvr schema.GroupVersionResource) bool {
	return s.server.Registry().Lookup(gvr) != nil
}

// Totals returns the totals of all requests since the start of the server.
func (s *Server) Totals() metrics.Totals { return metrics.TotalsOf(s.server.Metrics()) }

// Ready returns a channel that is closed when the server answers requests, including authorization, and the initial
// cluster objects exist.
func (s *Server) Ready() <-chan struct{} { return s.ready }
