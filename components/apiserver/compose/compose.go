// Package compose puts the whole API server together: the server itself, who
// may enter (authn), what they may do (authz), what is let pass (admission),
// the addresses of services, and the objects that every cluster starts with.
// `hyperkube up` and kube-apiserver both run what New returns.
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
	"hyperkube/components/apiserver/openapi"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/reviews"
	"hyperkube/components/apiserver/serviceip"
	"hyperkube/internal/api"
	"hyperkube/internal/client"
	"hyperkube/internal/encryption"
	"hyperkube/internal/measure"
	"hyperkube/internal/tokens"
	"hyperkube/internal/version"
	"hyperkube/internal/zpages"
)

// Config of a Server. What is empty is off, or as upstream has it where the
// comment says so.
type Config struct {
	// Etcd is where objects are; the server does not close it.
	Etcd *clientv3.Client
	// EtcdPrefix of all keys; "/registry" when empty.
	EtcdPrefix string
	// EtcdApart are other etcds that have the objects of single resources; the
	// server does not close them.
	EtcdApart map[schema.GroupResource]*clientv3.Client
	// Encryption tells how objects are encrypted at rest; nil: not at all. It
	// ends with whoever made it.
	Encryption *encryption.Transformers
	// CompactionInterval is how often etcd is told to forget what was; zero
	// means five minutes, less than zero never.
	CompactionInterval time.Duration
	// EventTTL is how long events are kept; zero means an hour.
	EventTTL time.Duration

	// Listener takes TLS connections; the server closes it. CertFile and
	// KeyFile are shown to clients.
	Listener          net.Listener
	CertFile, KeyFile string
	// ClientCAFile verifies client certificates.
	ClientCAFile string
	// FrontProxyCAFile verifies proxies that vouch for users.
	FrontProxyCAFile string
	FrontProxy       authn.FrontProxy
	// ProxyCertFile and ProxyKeyFile show aggregated servers who passes
	// requests on to them; empty: nothing does.
	ProxyCertFile, ProxyKeyFile string
	// EndpointRouting reaches aggregated servers at their pods' addresses.
	EndpointRouting bool
	// TokenFile is a CSV file of tokens.
	TokenFile string
	// BootstrapTokens lets the tokens of joining machines in.
	BootstrapTokens bool
	// NoAnonymous turns away requests without credentials, which otherwise
	// reach what RBAC gives to system:anonymous: health and version.
	NoAnonymous bool

	// Issuers of service account tokens, the first for new ones. Key signs
	// them, Keys verify them.
	Issuers []string
	Key     crypto.Signer
	Keys    *tokens.KeySet
	// Audiences of the API server; nil means the first issuer.
	Audiences []string

	Security

	// AuthorizationModes; nil means Node and RBAC.
	AuthorizationModes []string
	// EnableAdmission and DisableAdmission name plugins.
	EnableAdmission, DisableAdmission []string
	// AdmissionConfigFile is an AdmissionConfiguration; empty: none.
	AdmissionConfigFile string
	// TolerationSeconds of pods that do not say; nil: five minutes each.
	TolerationSeconds *admission.TolerationSeconds
	// Without tells which resources are not served. It may be nil.
	Without func(schema.GroupVersionResource) bool

	// ServiceCIDRs are the default ranges of services' addresses: one, or
	// one of each family. NodePorts is their range of ports.
	ServiceCIDRs []netip.Prefix
	NodePorts    utilnet.PortRange
	// Advertise is where others reach this server: the endpoint of the
	// Service kubernetes.
	Advertise netip.AddrPort
	// External is the host by which documents name this server, with a port if
	// that is another one than Advertise's. Empty: Advertise.
	External string
	// Shared: other API servers may serve the same etcd. They and this one
	// are all endpoints of that Service.
	Shared bool
	// NoEndpoints leaves the endpoints of that Service to somebody else.
	NoEndpoints bool
	// ServiceNodePort is the node port of that Service; zero: it has none.
	ServiceNodePort int32

	// InFlight is how many requests are worked on at the same time, Limits
	// what they may take. Audit says what is recorded of them.
	InFlight InFlight
	Limits   apiserver.Limits
	Audit    audit.Config

	// Components tell how the scheduler and the controller-manager are, under
	// these names; those that are not there are asked on this machine.
	Components map[string]func(context.Context) (string, error)

	Kubelet   apiserver.KubeletConfig
	Profiling bool
	// Flags and Level as of apiserver.Config.
	Flags zpages.Flags
	Level *slog.LevelVar
	// Log may be nil.
	Log *slog.Logger
}

// Server is the whole API server.
type Server struct {
	cfg       Config
	server    *apiserver.Server
	authn     *authn.Authenticator
	authz     *authz.Authorizer
	admission *admission.Chain
	dynamic   *dynamic.Plugins
	addresses *serviceip.Allocator
	fairness  *fairness.Limiter // nil when it is off
	audit     *audit.Auditor    // nil when nothing is recorded
	others    *aggregation.Aggregator
	trust     *aggregation.Trust
	own       *client.Clients
	source    *inprocess.Source
	ready     chan struct{}
}

// The parts that need a client of the server that they are a part of are given
// to it empty and filled before it runs.
type (
	lateAuthenticator struct{ authenticator.Request }
	lateAuthorizer    struct{ authorizer.Authorizer }
	lateHandler       struct{ http.Handler }
	lateAggregation   struct{ *aggregation.Aggregator }
)

// New validates cfg and puts everything together. Nothing runs yet, but clients
// can be made at once: their requests wait for Run.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Issuers) == 0 || cfg.Key == nil || cfg.Keys == nil {
		return nil, errors.New("the API server needs an issuer and keys of service account tokens")
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
		Etcd: cfg.Etcd, EtcdPrefix: cfg.EtcdPrefix, EtcdApart: cfg.EtcdApart, Without: cfg.Without, Transformer: cfg.Encryption.For, EventTTL: cfg.EventTTL,
		Listener: cfg.Listener, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile,
		Authenticator: who, Authorizer: may, Admission: admit,
		Kubelet: cfg.Kubelet, Profiling: cfg.Profiling, Flags: cfg.Flags, Level: cfg.Level, Log: cfg.Log,
		Extend: s.extend, Paths: paths, Aggregation: others, TLS: cfg.TLS, External: cfg.external(),
		ReadyChecks: s.readyChecks(), WorkChecks: s.workChecks(),
		OnlyReadyChecks: []health.Check{health.Closed("informer-sync", s.ready)},
		Limiter:         limiter, Limits: cfg.Limits,
		Adopt: map[schema.GroupResource]func(api.Object){{Resource: "services"}: serviceip.Adopt(cfg.ServiceCIDRs)},
	}
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
	// Policies may look at whatever their parameters have.
	if s.own, err = s.clients(s.source, nil, "kube-apiserver", "system:apiserver", "system:masters"); err != nil {
		return nil, err
	}
	if err := s.server.Metrics().Registry().Register(s.own.Requests); err != nil {
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
	others.Aggregator = s.others
	documents.Aggregate(s.others)
	return s, nil
}

// external is the host and port by which documents name this server, or empty.
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

// discovery makes the public documents by which others verify service account
// tokens, if the issuer's name allows any.
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
		c.Log.Warn("service account tokens cannot be verified by others", "err", err)
		return map[string]http.Handler{}
	}
	return map[string]http.Handler{
		tokens.ConfigurationPath: http.HandlerFunc(docs.Configuration),
		tokens.JWKSPath:          http.HandlerFunc(docs.JWKS),
	}
}

// secure makes the parts that decide about requests.
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
	objects := tokens.CachedGetter(s.own.Kube, s.own.Informers, pods)
	usage, err := tokens.NewUsage(s.own.Kube, s.server.Metrics().Registry(), cfg.Log)
	if err != nil {
		return err
	}
	verifier, err := tokens.NewVerifier(tokens.VerifierConfig{Issuers: cfg.Issuers, Keys: cfg.Keys, Audiences: audiences, Objects: objects, Usage: usage})
	if err != nil {
		return err
	}
	issuer, err := tokens.NewIssuer(tokens.IssuerConfig{
		Issuer: cfg.Issuers[0], Key: cfg.Key, Audiences: audiences, Objects: tokens.LiveGetter(s.own.Kube),
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
		authnConfig.BootstrapTokens = s.own.Kube
	}
	if s.authn, err = authn.New(authnConfig); err != nil {
		return err
	}
	s.authz, err = authz.New(authz.Config{
		Modes: cfg.AuthorizationModes, Informers: s.own.Informers, Kube: s.own.Kube, Pods: pods,
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
		Informers: s.own.Informers, Kube: s.own.Kube, Dynamic: s.own.Dynamic, Authorizer: s.authz, Registry: reg,
		Files: files, Requests: s.own.Requests,
	})
	if err != nil {
		return err
	}
	extra := maps.Clone(s.dynamic.All())
	extra["PolicyParams"] = admission.PolicyParams{Authorizer: s.authz, Kube: s.own.Kube, Resource: func(gvk schema.GroupVersionKind) string {
		if r := reg.Kind(gvk); r != nil {
			return r.Plural
		}
		return ""
	}}
	s.admission, err = admission.New(admission.Config{
		Informers: s.own.Informers, Kube: s.own.Kube, Pods: pods, Authorizer: s.authz,
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
	// What plugins annotate goes into the audit event of the request.
	who.Request, may.Authorizer, admit.Interface = s.authn, s.authz, utiladmission.WithAudit(s.admission)
	return reg.AddActions(reviews.Actions(reviews.Config{
		Tokens: s.authn, Audiences: audiences, Authorizer: s.authz, Rules: s.authz, Issuer: issuer,
	})...)
}

// extend adds what takes part in the writes of single resources.
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
	if s.cfg.Without == nil || !s.cfg.Without(corev1.SchemeGroupVersion.WithResource("componentstatuses")) {
		if err := s.components(reg); err != nil {
			return err
		}
	}
	return reg.AddHook(collection("", "services"), s.addresses.Hook)
}

// Clients makes a user's clients within this process. Their informers are fed
// from the watch cache, without managed fields. The agent is how they call themselves: it is in managed
// fields.
func (s *Server) Clients(agent, userName string, groups ...string) (*client.Clients, error) {
	return s.MeasuredClients(nil, agent, userName, groups...)
}

// MeasuredClients are Clients whose requests are measured by those of others;
// nil: apart.
func (s *Server) MeasuredClients(requests *measure.Requests, agent, userName string, groups ...string) (*client.Clients, error) {
	return s.clients(s.source.Trimmed(), requests, agent, userName, groups...)
}

func (s *Server) clients(source client.Source, requests *measure.Requests, agent, userName string, groups ...string) (*client.Clients, error) {
	cfg := s.ClientConfig(userName, groups...)
	cfg.UserAgent = agent
	return client.New(client.Config{REST: cfg, Source: source, Requests: requests})
}

// ClientConfig is a user's way in within this process.
func (s *Server) ClientConfig(userName string, groups ...string) *clientrest.Config {
	return s.server.ClientConfig(userName, groups...)
}

// Serves tells whether a resource is served.
func (s *Server) Serves(gvr schema.GroupVersionResource) bool {
	return s.server.Registry().Lookup(gvr) != nil
}

// Ready is closed once requests are decided about and answered, and the objects
// that a cluster starts with are there.
func (s *Server) Ready() <-chan struct{} { return s.ready }
