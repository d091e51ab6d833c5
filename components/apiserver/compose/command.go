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
	"google.golang.org/grpc"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/authn"
	"hyperkube/internal/encryption"
	"hyperkube/internal/hostaddress"
	"hyperkube/internal/logs"
	"hyperkube/internal/rawconn"
	"hyperkube/internal/tokens"
	"hyperkube/internal/zpages"
)

// options are the flags of kube-apiserver, under upstream's names.
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
	format                     logs.Format
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

// NewCommand is `kube-apiserver`.
func NewCommand() *cobra.Command {
	o := &options{nodePorts: utilnet.PortRange{Base: 30000, Size: 2768}}
	cmd := &cobra.Command{
		Use:   "kube-apiserver",
		Short: "The API server: the front of the cluster's state",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags())) },
	}
	o.flags(cmd.Flags())
	o.limits.flags(cmd.Flags())
	o.audit.Flags(cmd.Flags())
	o.more.flags(cmd.Flags())
	return cmd
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.etcdServers, "etcd-servers", nil, "List of etcd servers to connect with (scheme://ip:port), comma separated.")
	f.StringVar(&o.etcdCA, "etcd-cafile", "", "Certificate authority of etcd.")
	f.StringVar(&o.etcdCert, "etcd-certfile", "", "Client certificate for etcd.")
	f.StringVar(&o.etcdKey, "etcd-keyfile", "", "Key of the client certificate for etcd.")
	f.StringVar(&o.etcdPrefix, "etcd-prefix", "/registry", "Prefix of all keys in etcd.")
	f.StringVar(&o.bind, "bind-address", "0.0.0.0", "Address on which to listen for --secure-port.")
	f.StringVar(&o.external, "external-hostname", "", "Host by which documents such as those of discovery name this server, with a port or without; empty: the advertised address.")
	f.StringVar(&o.advertise, "advertise-address", "", "Address at which members of the cluster reach this server; empty: that of --bind-address, or of the default route.")
	f.IntVar(&o.port, "secure-port", 6443, "Port on which to serve HTTPS.")
	f.StringVar(&o.certDir, "cert-dir", defaultCertDir, "Directory of the serving certificate without --tls-cert-file: apiserver.crt and apiserver.key, which are made when they are not there.")
	f.StringVar(&o.certFile, "tls-cert-file", "", "Serving certificate, with its intermediates.")
	f.StringVar(&o.keyFile, "tls-private-key-file", "", "Key of the serving certificate.")
	f.StringVar(&o.clientCA, "client-ca-file", "", "Authorities of client certificates.")
	f.StringVar(&o.tokenFile, "token-auth-file", "", "CSV file of bearer tokens.")
	f.BoolVar(&o.bootstrapTokens, "enable-bootstrap-token-auth", false, "Let the tokens of joining machines in.")
	f.BoolVar(&o.anonymous, "anonymous-auth", true, "Let requests without credentials in as system:anonymous.")
	f.StringVar(&o.proxyCA, "requestheader-client-ca-file", "", "Authorities of front proxies, who vouch for users by headers.")
	f.StringSliceVar(&o.proxyNames, "requestheader-allowed-names", nil, "Common names of front proxies; empty: any that the authorities signed.")
	f.StringSliceVar(&o.proxyUser, "requestheader-username-headers", []string{"X-Remote-User"}, "Headers with the user's name.")
	f.StringSliceVar(&o.proxyUID, "requestheader-uid-headers", []string{"X-Remote-Uid"}, "Headers with the user's UID.")
	f.StringSliceVar(&o.proxyGroup, "requestheader-group-headers", []string{"X-Remote-Group"}, "Headers with the user's groups.")
	f.StringSliceVar(&o.proxyExtra, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "Prefixes of headers with more about the user.")
	f.StringSliceVar(&o.issuers, "service-account-issuer", nil, "Issuers of service account tokens, the first for new ones.")
	f.StringSliceVar(&o.verifyKeys, "service-account-key-file", nil, "Keys that verify service account tokens.")
	f.StringVar(&o.signingKey, "service-account-signing-key-file", "", "Key that signs service account tokens.")
	f.StringSliceVar(&o.audiences, "api-audiences", nil, "Audiences of this server; empty: the issuers.")
	f.StringVar(&o.serviceCIDRs, "service-cluster-ip-range", "10.96.0.0/16", "Ranges of services' addresses: one, or one of each family, comma separated.")
	f.Var(&o.nodePorts, "service-node-port-range", "Range of node ports.")
	f.StringSliceVar(&o.modes, "authorization-mode", []string{"Node", "RBAC"}, "Authorizers in the order in which they are asked.")
	f.StringSliceVar(&o.enable, "enable-admission-plugins", nil, "Admission plugins besides the default ones.")
	f.StringSliceVar(&o.disable, "disable-admission-plugins", nil, "Default admission plugins to leave out.")
	f.StringVar(&o.admissionConfig, "admission-control-config-file", "", "AdmissionConfiguration: the configurations of admission plugins.")
	f.StringVar(&o.encryptionConfig, "encryption-provider-config", "", "EncryptionConfiguration of what is encrypted at rest.")
	f.BoolVar(&o.encryptionReload, "encryption-provider-config-automatic-reload", false, "Take up changes of --encryption-provider-config; /healthz then tells of all its key services as one.")
	f.StringVar(&o.kubeletCert, "kubelet-client-certificate", "", "Client certificate for kubelets.")
	f.StringVar(&o.kubeletKey, "kubelet-client-key", "", "Key of the client certificate for kubelets.")
	f.StringVar(&o.kubeletCA, "kubelet-certificate-authority", "", "Authority of the kubelets' serving certificates; empty: they are not verified.")
	f.StringSliceVar(&o.kubeletAddressTypes, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}, "Types of node addresses, the preferred first.")
	f.DurationVar(&o.eventTTL, "event-ttl", time.Hour, "How long events are kept.")
	f.BoolVar(&o.profiling, "profiling", true, "Serve /debug/pprof.")
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log level: above 3 shows what is for debugging.")
	f.StringVar(&o.proxyCert, "proxy-client-cert-file", "", "Client certificate for aggregated servers.")
	f.StringVar(&o.proxyKey, "proxy-client-key-file", "", "Key of the client certificate for aggregated servers.")
	o.security.flags(f)
	f.BoolVar(&o.endpointRouting, "enable-aggregator-routing", false, "Reach aggregated servers at the addresses of their pods and not at that of their Service.")
	f.BoolVar(&o.ignoredPrivileged, "allow-privileged", true, "Privileged containers are for Pod Security to decide about; this is accepted and ignored.")
}

func (o *options) run(ctx context.Context, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logs.Own(log)
	// Requests that are under way when it is time to end are still decrypted.
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
	if cfg.EtcdApart, err = o.dialApart(); err != nil {
		return err
	}
	defer closeApart(cfg.EtcdApart)
	if cfg.Listener, err = o.more.listen(ctx, net.JoinHostPort(o.bind, strconv.Itoa(o.port))); err != nil {
		return err
	}
	server, err := New(cfg)
	if err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	return server.Run(ctx)
}

// config reads the files that the flags name. Etcd and Listener are left. What
// it encrypts with ends with ctx.
func (o *options) config(ctx context.Context, log *slog.Logger) (Config, error) {
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
		Log:       log,
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
	if err := o.more.apply(&cfg); err != nil {
		return cfg, err
	}
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
	if o.encryptionReload && o.encryptionConfig == "" {
		return cfg, errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	if o.encryptionConfig != "" {
		id, err := serverID()
		if err != nil {
			return cfg, err
		}
		cfg.Encryption, err = encryption.Load(ctx, encryption.Config{Path: o.encryptionConfig, Reload: o.encryptionReload, ServerID: id, Log: log})
		if err != nil {
			return cfg, err
		}
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
	cfg.Advertise, cfg.External = netip.AddrPortFrom(address, uint16(o.port)), o.external
	return cfg, nil
}

// address is where others reach this server.
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
		return address, fmt.Errorf("address to advertise: %w", err)
	case address.IsValid():
		return address, nil
	case bind.IsLoopback():
		return bind, nil // the machine is alone, as those of tests may be
	}
	return address, errors.New("this machine has no address that others could reach: give --advertise-address")
}

// parseAddr is an address; "" is an unspecified one.
func parseAddr(text string) (netip.Addr, error) {
	if text == "" {
		return netip.IPv4Unspecified(), nil
	}
	return netip.ParseAddr(text)
}

// dial connects with the main etcd.
func (o *options) dial() (*clientv3.Client, error) {
	if len(o.etcdServers) == 0 {
		return nil, errors.New("--etcd-servers must be specified")
	}
	return o.dialTo(o.etcdServers)
}

// etcdTimeout is for how long an etcd that does not answer is believed to live.
const etcdTimeout = 10 * time.Second

// direct tells whether all servers are reached over TCP, without a proxy.
func direct(servers []string) bool {
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" {
			return false
		}
		// gRPC asks for the proxy of HTTPS in any case.
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: u.Host}})
		if err != nil || proxy != nil {
			return false
		}
	}
	return true
}

// dialTo connects with an etcd over the network.
func (o *options) dialTo(servers []string) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints:            servers,
		DialTimeout:          20 * time.Second,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: etcdTimeout,
		Logger:               logs.Zap(slog.Default(), nil),
	}
	if direct(servers) {
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(new(rawconn.Pace).Dialer(etcdTimeout))}
	}
	info := transport.TLSInfo{CertFile: o.etcdCert, KeyFile: o.etcdKey, TrustedCAFile: o.etcdCA}
	if !info.Empty() || o.etcdCA != "" {
		t, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("reaching etcd: %w", err)
		}
		cfg.TLS = t
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("reaching etcd: %w", err)
	}
	return c, nil
}
