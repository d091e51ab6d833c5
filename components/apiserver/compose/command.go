package compose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/authn"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/credentials/encryption"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/host/hostaddress"
	"hyperkube/internal/serving/rawconn"
	"hyperkube/internal/serving/zpages"
)

// options contains the flags of kube-apiserver, with upstream's names.
//
// Size: one field for each flag of kube-apiserver.
type options struct {
	etcdServers                []string
	etcdCA, etcdCert, etcdKey  string
	etcdPrefix                 string
	bind, advertise, external  string
	port                       int
	certFile, keyFile, certDir string
	clientCA                   string
	tokenFile                  string
	bootstrapTokens, anonymous bool
	proxyCA                    string
	proxyNames                 []string
	proxyUser, proxyGroup      []string
	proxyExtra                 []string
	issuers                    []string
	verifyKeys                 []string
	signingKey                 string
	audiences                  []string
	serviceCIDRs               string
	nodePorts                  utilnet.PortRange
	modes                      []string
	enable, disable            []string
	admissionConfig            string
	encryptionConfig           string
	encryptionReload           bool
	format                     logging.Format
	kubeletCert, kubeletKey    string
	kubeletCA                  string
	kubeletAddressTypes        []string
	eventTTL                   time.Duration
	limits                     limitOptions
	audit                      audit.Config
	profiling                  bool
	verbosity                  int
	proxyCert, proxyKey        string
	endpointRouting            bool
	proxyUID                   []string
	ignoredPrivileged          bool
	security                   securityOptions
	more                       moreOptions
}

// NewCommand returns the command kube-apiserver, which runs an API server with an external etcd.
func NewCommand() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "kube-apiserver",
		Short: "The Kubernetes API server validates and configures data for the API objects",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags())) },
	}
	o.register(cmd.Flags())
	return cmd
}

// newOptions returns options whose flags are not registered.
func newOptions() *options {
	return &options{nodePorts: utilnet.PortRange{Base: 30000, Size: 2768}}
}

// register adds all flags to f.
func (o *options) register(f *pflag.FlagSet) {
	o.flags(f)
	o.limits.flags(f)
	o.audit.Flags(f)
	o.more.flags(f)
}

// flags adds to f the flags of kube-apiserver whose values are fields of o. The fields of type moreOptions and similar
// add their own flags.
func (o *options) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.etcdServers, "etcd-servers", nil, "List of etcd servers to connect with (scheme://ip:port), comma separated.")
	f.StringVar(&o.etcdCA, "etcd-cafile", "", "SSL Certificate Authority file used to secure etcd communication.")
	f.StringVar(&o.etcdCert, "etcd-certfile", "", "SSL certification file used to secure etcd communication.")
	f.StringVar(&o.etcdKey, "etcd-keyfile", "", "SSL key file used to secure etcd communication.")
	f.StringVar(&o.etcdPrefix, "etcd-prefix", "/registry", "The prefix to prepend to all resource paths in etcd.")
	f.StringVar(&o.bind, "bind-address", "0.0.0.0", "The IP address on which to listen for the --secure-port port.")
	f.StringVar(&o.external, "external-hostname", "", "The hostname, with an optional port, to use when generating externalized URLs for this server (e.g. OpenID Discovery). If empty, the advertised address is used.")
	f.StringVar(&o.advertise, "advertise-address", "", "The IP address on which to advertise the apiserver to members of the cluster. If blank, the --bind-address is used. If that is unspecified, the host's default interface is used.")
	f.IntVar(&o.port, "secure-port", 6443, "The port on which to serve HTTPS with authentication and authorization.")
	f.StringVar(&o.certDir, "cert-dir", defaultCertDir, "The directory where the TLS certs are located. If --tls-cert-file and --tls-private-key-file are provided, this flag is ignored. Otherwise apiserver.crt and apiserver.key are used, and generated if they do not exist.")
	f.StringVar(&o.certFile, "tls-cert-file", "", "File containing the default x509 Certificate for HTTPS (CA cert, if any, concatenated after server cert).")
	f.StringVar(&o.keyFile, "tls-private-key-file", "", "File containing the default x509 private key matching --tls-cert-file.")
	f.StringVar(&o.clientCA, "client-ca-file", "", "If set, any request presenting a client certificate signed by one of the authorities in this file is authenticated with an identity corresponding to the CommonName of the client certificate.")
	f.StringVar(&o.tokenFile, "token-auth-file", "", "If set, the file that is used to secure the secure port of the API server via token authentication.")
	f.BoolVar(&o.bootstrapTokens, "enable-bootstrap-token-auth", false, "Enable to allow secrets of type 'bootstrap.kubernetes.io/token' in the 'kube-system' namespace to be used for TLS bootstrapping authentication.")
	f.BoolVar(&o.anonymous, "anonymous-auth", true, "Enables anonymous requests to the secure port of the API server. They have a username of system:anonymous and a group name of system:unauthenticated.")
	f.StringVar(&o.proxyCA, "requestheader-client-ca-file", "", "Root certificate bundle to use to verify client certificates on incoming requests before trusting usernames in headers specified by --requestheader-username-headers.")
	f.StringSliceVar(&o.proxyNames, "requestheader-allowed-names", nil, "List of client certificate common names to allow to provide usernames in headers specified by --requestheader-username-headers. If empty, any client certificate validated by the authorities in --requestheader-client-ca-file is allowed.")
	f.StringSliceVar(&o.proxyUser, "requestheader-username-headers", []string{"X-Remote-User"}, "List of request headers to inspect for usernames.")
	f.StringSliceVar(&o.proxyUID, "requestheader-uid-headers", []string{"X-Remote-Uid"}, "List of request headers to inspect for UIDs.")
	f.StringSliceVar(&o.proxyGroup, "requestheader-group-headers", []string{"X-Remote-Group"}, "List of request headers to inspect for groups.")
	f.StringSliceVar(&o.proxyExtra, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "List of request header prefixes to inspect.")
	f.StringSliceVar(&o.issuers, "service-account-issuer", nil, "Identifier of the service account token issuer. If specified multiple times, the first is used to generate tokens and all are used to determine which issuers are accepted.")
	f.StringSliceVar(&o.verifyKeys, "service-account-key-file", nil, "File containing PEM-encoded x509 RSA or ECDSA private or public keys, used to verify ServiceAccount tokens. Can be specified multiple times.")
	f.StringVar(&o.signingKey, "service-account-signing-key-file", "", "Path to the file that contains the current private key of the service account token issuer.")
	f.StringSliceVar(&o.audiences, "api-audiences", nil, "Identifiers of the API. Defaults to the issuer URLs.")
	f.StringVar(&o.serviceCIDRs, "service-cluster-ip-range", "10.96.0.0/16", "A CIDR notation IP range from which to assign service cluster IPs. Max of two dual-stack CIDRs is allowed, comma separated.")
	f.Var(&o.nodePorts, "service-node-port-range", "A port range to reserve for services with NodePort visibility, inclusive at both ends of the range. Example: '30000-32767'.")
	f.StringSliceVar(&o.modes, "authorization-mode", []string{"Node", "RBAC"}, "Ordered list of plug-ins to do authorization on secure port.")
	f.StringSliceVar(&o.enable, "enable-admission-plugins", nil, "Admission plugins that should be enabled in addition to default enabled ones.")
	f.StringSliceVar(&o.disable, "disable-admission-plugins", nil, "Admission plugins that should be disabled although they are in the default enabled plugins list.")
	f.StringVar(&o.admissionConfig, "admission-control-config-file", "", "File with admission control configuration.")
	f.StringVar(&o.encryptionConfig, "encryption-provider-config", "", "The file containing configuration for encryption providers to be used for storing secrets in etcd.")
	f.BoolVar(&o.encryptionReload, "encryption-provider-config-automatic-reload", false, "Determines if the file set by --encryption-provider-config should be automatically reloaded if the disk contents change. /healthz then reports all KMS providers as a single check.")
	f.StringVar(&o.kubeletCert, "kubelet-client-certificate", "", "Path to a client cert file for TLS.")
	f.StringVar(&o.kubeletKey, "kubelet-client-key", "", "Path to a client key file for TLS.")
	f.StringVar(&o.kubeletCA, "kubelet-certificate-authority", "", "Path to a cert file for the certificate authority of the kubelets' serving certificates. If empty, they are not verified.")
	f.StringSliceVar(&o.kubeletAddressTypes, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}, "List of the preferred NodeAddressTypes to use for kubelet connections.")
	f.DurationVar(&o.eventTTL, "event-ttl", time.Hour, "Amount of time to retain events.")
	f.BoolVar(&o.profiling, "profiling", true, "Enable profiling via web interface host:port/debug/pprof/.")
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Number for the log level verbosity. Above 3, debug messages are logged.")
	f.StringVar(&o.proxyCert, "proxy-client-cert-file", "", "Client certificate used to prove the identity of the aggregator when it must call out during a request to an aggregated API server.")
	f.StringVar(&o.proxyKey, "proxy-client-key-file", "", "Private key for the client certificate used to prove the identity of the aggregator when it must call out during a request.")
	o.security.flags(f)
	f.BoolVar(&o.endpointRouting, "enable-aggregator-routing", false, "Turns on aggregator routing requests to endpoints IP rather than cluster IP.")
	f.BoolVar(&o.ignoredPrivileged, "allow-privileged", true, "Accepted and ignored: privileged containers are controlled by Pod Security Admission.")
}

// run runs the API server with an external etcd until ctx is canceled, and replaces the default logger. flags are the
// values of the command's flags, which the server shows at /flagz.
func (o *options) run(ctx context.Context, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logging.SetDefault(log)
	// Requests that are in progress during shutdown still need decryption.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	cfg, err := o.config(lasting, log)
	if err != nil {
		return err
	}
	cfg.Flags, cfg.Level = flags, level
	if err := o.certificate(&cfg); err != nil {
		return err
	}
	if cfg.Etcd, err = o.dial(); err != nil {
		return err
	}
	defer cfg.Etcd.Close()
	if cfg.EtcdOverrides, err = o.dialOverrides(); err != nil {
		return err
	}
	defer closeOverrides(cfg.EtcdOverrides)
	if cfg.Listener, err = o.more.listen(ctx, net.JoinHostPort(o.bind, strconv.Itoa(o.port))); err != nil {
		return err
	}
	server, err := New(cfg)
	if err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	return server.Run(ctx)
}

// settings returns the part of the configuration for which no file must be read.
func (o *options) settings() (Config, error) {
	cfg := Config{
		EtcdPrefix: o.etcdPrefix, EventTTL: o.eventTTL, Shared: true,
		CertFile: o.certFile, KeyFile: o.keyFile,
		ClientCAFile: o.clientCA, TokenFile: o.tokenFile, BootstrapTokens: o.bootstrapTokens, NoAnonymous: !o.anonymous,
		FrontProxyCAFile: o.proxyCA,
		FrontProxy: authn.FrontProxy{
			AllowedNames: o.proxyNames, UsernameHeaders: o.proxyUser, UIDHeaders: o.proxyUID, GroupHeaders: o.proxyGroup, ExtraHeaderPrefixes: o.proxyExtra,
		},
		ProxyCertFile: o.proxyCert, ProxyKeyFile: o.proxyKey, EndpointRouting: o.endpointRouting,
		Issuers: o.issuers, Audiences: o.audiences,
		AuthorizationModes: o.modes, EnableAdmission: o.enable, DisableAdmission: o.disable, AdmissionConfigFile: o.admissionConfig,
		NodePorts: o.nodePorts,
		Kubelet: apiserver.KubeletConfig{
			ClientCertFile: o.kubeletCert, ClientKeyFile: o.kubeletKey, CAFile: o.kubeletCA, AddressTypes: o.kubeletAddressTypes,
		},
		Profiling: o.profiling,
		External:  o.external,
	}
	var err error
	if cfg.Security, err = o.security.config(); err != nil {
		return cfg, err
	}
	if cfg.AuthorizationConfigFile != "" {
		cfg.AuthorizationModes = nil
	}
	cfg.Audit = o.audit
	if err := o.limits.apply(&cfg); err != nil {
		return cfg, err
	}
	return cfg, o.more.apply(&cfg)
}

// config converts the flags to a Config, and reads the files of keys and encryption that they name. It does not set
// Etcd and Listener. It returns an error for invalid flags, and without --service-account-signing-key-file. The
// encryption providers stop when ctx is canceled.
func (o *options) config(ctx context.Context, log *slog.Logger) (Config, error) {
	cfg, err := o.settings()
	if err != nil {
		return cfg, err
	}
	cfg.Log = log
	if o.signingKey == "" {
		return cfg, errors.New("--service-account-signing-key-file is required")
	}
	if cfg.Key, err = tokens.LoadSigner(o.signingKey); err != nil {
		return cfg, err
	}
	keys := o.verifyKeys
	if len(keys) == 0 {
		keys = []string{o.signingKey}
	}
	if cfg.Keys, err = tokens.LoadKeySet(keys...); err != nil {
		return cfg, err
	}
	if cfg.Encryption, err = o.loadEncryption(ctx, log); err != nil {
		return cfg, err
	}
	for text := range strings.SplitSeq(o.serviceCIDRs, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return cfg, fmt.Errorf("--service-cluster-ip-range: %w", err)
		}
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, p.Masked())
	}
	address, err := o.address()
	if err != nil {
		return cfg, err
	}
	cfg.Advertise = netip.AddrPortFrom(address, uint16(o.port))
	return cfg, nil
}

// errReloadWithoutFile is the error about reloading a file that is not configured.
var errReloadWithoutFile = errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")

// loadEncryption loads the configuration of encryption at rest from --encryption-provider-config. It returns nil if
// the flag is not set, but an error if automatic reload is requested without it. The providers stop when ctx is
// canceled.
func (o *options) loadEncryption(ctx context.Context, log *slog.Logger) (*encryption.Transformers, error) {
	if o.encryptionReload && o.encryptionConfig == "" {
		return nil, errReloadWithoutFile
	}
	if o.encryptionConfig == "" {
		return nil, nil
	}
	id, err := serverID()
	if err != nil {
		return nil, err
	}
	return encryption.Load(ctx, encryption.Config{Path: o.encryptionConfig, Reload: o.encryptionReload, ServerID: id, Log: log})
}

// address returns the IP address that this server advertises: that of --advertise-address, or else of --bind-address,
// or else of the host's default interface. On a host without a network it returns the loopback address of
// --bind-address. It returns an error if there is none of them.
func (o *options) address() (netip.Addr, error) {
	given, err := parseAddr(o.advertise)
	if err != nil {
		return given, fmt.Errorf("--advertise-address: %w", err)
	}
	if !given.IsUnspecified() {
		return given, nil
	}
	bind, err := parseAddr(o.bind)
	if err != nil {
		return bind, fmt.Errorf("--bind-address: %w", err)
	}
	address, err := hostaddress.Advertised(bind)
	switch {
	case err != nil:
		return address, fmt.Errorf("determining the address to advertise: %w", err)
	case address.IsValid():
		return address, nil
	case bind.IsLoopback():
		return bind, nil // a host without a network, for example in tests
	}
	return address, errors.New("this host has no address that other hosts can reach: specify --advertise-address")
}

// parseAddr parses an IP address. "" is the unspecified IPv4 address (0.0.0.0).
func parseAddr(text string) (netip.Addr, error) {
	if text == "" {
		return netip.IPv4Unspecified(), nil
	}
	return netip.ParseAddr(text)
}

// dial connects to the main etcd, which --etcd-servers names.
func (o *options) dial() (*clientv3.Client, error) {
	if len(o.etcdServers) == 0 {
		return nil, errors.New("--etcd-servers must be specified")
	}
	return o.dialTo(o.etcdServers)
}

// etcdTimeout is how long an etcd may be unresponsive before the connection to it is closed. Then
// the client connects to another member.
const etcdTimeout = 10 * time.Second

// isDirect reports whether all etcd servers are reached over TCP, without an HTTP proxy in the environment. Only then
// dialTo replaces the dialer of gRPC, which supports proxies.
func isDirect(servers []string) bool {
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" {
			return false
		}
		// gRPC always uses the HTTPS proxy setting.
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: u.Host}})
		if err != nil || proxy != nil {
			return false
		}
	}
	return true
}

// dialTo returns a client for the members of one etcd cluster over the network, with the TLS flags for etcd. It
// connects in the background, so an etcd that does not respond is not an error.
func (o *options) dialTo(servers []string) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints:            servers,
		DialTimeout:          20 * time.Second,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: etcdTimeout,
		Logger:               logging.Zap(slog.Default(), zap.WarnLevel, nil),
	}
	if isDirect(servers) {
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(new(rawconn.MonitorWaker).Dialer(etcdTimeout))}
	}
	info := transport.TLSInfo{CertFile: o.etcdCert, KeyFile: o.etcdKey, TrustedCAFile: o.etcdCA}
	if !info.Empty() || o.etcdCA != "" {
		t, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connecting to etcd: %w", err)
		}
		cfg.TLS = t
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	return c, nil
}
