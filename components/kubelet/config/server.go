package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// Server configures the kubelet's HTTP servers: the HTTPS API, the read-only port and the health check.
type Server struct {
	// Off disables the HTTPS server.
	Off bool
	// Address and Port are those of the HTTPS server. The default is all addresses and Layout's
	// port.
	Address string
	Port    int
	// HealthzAddress and HealthzPort are those of the health check server. The default is the
	// loopback address and Layout's port. A negative port disables the server.
	HealthzAddress string
	HealthzPort    int
	// ReadOnlyPort is the port of the server that serves pods, stats and metrics without TLS and
	// authentication. Zero disables it.
	ReadOnlyPort int
	// Certificate returns the certificate of the HTTPS server. It is called for each connection, so
	// that the certificate can be renewed. If it is nil, the kubelet uses a self-signed
	// certificate. CertificateHasMetrics: the metrics of the
	// certificate are exported separately.
	Certificate           func() (*tls.Certificate, error)
	CertificateHasMetrics bool
	// TLSMinVersion, CipherSuites and Curves, the key exchange mechanisms, are values of
	// crypto/tls. The zero value means Go's default.
	TLSMinVersion uint16
	CipherSuites  []uint16
	Curves        []tls.CurveID
	// StreamIdle is the idle timeout of exec, attach and port-forward streams, 4 hours by default.
	StreamIdle time.Duration
	// NoDebug disables logs, exec, attach, port-forward and profiles. NoProfiling disables only
	// profiles, NoNodeLogs only the node's logs.
	NoDebug, NoProfiling, NoNodeLogs bool
	// NodeLogQuery enables queries for the logs of the node's services.
	NodeLogQuery bool
	// ContentionProfile enables the profile of lock contention.
	ContentionProfile bool
}

func (c *Server) complete() {
	c.Port = cmp.Or(c.Port, layout.PortKubelet)
	c.HealthzAddress = cmp.Or(c.HealthzAddress, defaultHealthzAddress)
	c.HealthzPort = cmp.Or(c.HealthzPort, layout.PortKubeletHealthz)
	c.StreamIdle = cmp.Or(c.StreamIdle, defaultStreamIdle)
}

// Access configures authentication and authorization of the kubelet's clients.
type Access struct {
	// ClientCA verifies client certificates. If it is nil, none is accepted.
	ClientCA *x509.CertPool
	// Anonymous allows anonymous requests. They are still subject to authorization.
	Anonymous bool
	// AlwaysAllow authorizes every authenticated request.
	AlwaysAllow bool
	// NoTokens disables bearer token authentication. TokenTTL, AllowTTL and DenyTTL are the cache
	// durations of the API server's TokenReview results and of its positive and negative
	// SubjectAccessReview results: 2 minutes, 5 minutes and 30 seconds by default.
	NoTokens                    bool
	TokenTTL, AllowTTL, DenyTTL time.Duration
}

func (c *Access) complete() {
	c.TokenTTL = cmp.Or(c.TokenTTL, defaultTokenTTL)
	c.AllowTTL = cmp.Or(c.AllowTTL, defaultAllowTTL)
	c.DenyTTL = cmp.Or(c.DenyTTL, defaultDenyTTL)
}

// applyServer sets the fields of c for the HTTPS server, except its certificate, to the values of the configuration
// file f. It returns an error for an unknown TLS version or an insecure cipher suite.
func (c *Config) applyServer(f *kubeletv1beta1.KubeletConfiguration) error {
	overrideInverted(&c.Server.NoDebug, f.EnableDebuggingHandlers)
	overrideInverted(&c.Server.NoProfiling, f.EnableProfilingHandler)
	overrideInverted(&c.Server.NoNodeLogs, f.EnableSystemLogHandler)
	c.Server.NodeLogQuery = ptr.Deref(f.EnableSystemLogQuery, false)
	c.Server.ContentionProfile = c.Server.ContentionProfile || f.EnableContentionProfiling
	override(&c.Server.HealthzAddress, f.HealthzBindAddress)
	override(&c.Server.StreamIdle, f.StreamingConnectionIdleTimeout.Duration)
	if len(f.TLSCurvePreferences) > 0 {
		c.Server.Curves = nil
	}
	for _, id := range f.TLSCurvePreferences {
		c.Server.Curves = append(c.Server.Curves, tls.CurveID(id))
	}
	switch f.TLSMinVersion {
	case "":
	case "VersionTLS12":
		c.Server.TLSMinVersion = tls.VersionTLS12
	case "VersionTLS13":
		c.Server.TLSMinVersion = tls.VersionTLS13
	default:
		return fmt.Errorf("tlsMinVersion %q: want VersionTLS12 or VersionTLS13", f.TLSMinVersion)
	}
	for _, name := range f.TLSCipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("tlsCipherSuites: %q is unknown or insecure", name)
		}
		c.Server.CipherSuites = append(c.Server.CipherSuites, tls.CipherSuites()[i].ID)
	}
	return nil
}

// applyAccess sets the authentication and authorization of clients, and the server's certificate, in c to the
// values of the configuration file f. It returns an error if a CA or certificate file cannot be read, or the
// authorization mode is unknown.
func (c *Config) applyAccess(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	overridePtr(&c.Access.Anonymous, f.Authentication.Anonymous.Enabled)
	overrideInverted(&c.Access.NoTokens, f.Authentication.Webhook.Enabled)
	override(&c.Access.TokenTTL, f.Authentication.Webhook.CacheTTL.Duration)
	override(&c.Access.AllowTTL, f.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	override(&c.Access.DenyTTL, f.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
	switch f.Authorization.Mode {
	case "", kubeletv1beta1.KubeletAuthorizationModeWebhook:
	case kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow:
		c.Access.AlwaysAllow = true
	default:
		errs = append(errs, fmt.Errorf("authorization mode %q: want Webhook or AlwaysAllow", f.Authorization.Mode))
	}
	if path := f.Authentication.X509.ClientCAFile; path != "" {
		pool, err := ReadPool(path)
		errs = append(errs, err)
		c.Access.ClientCA = pool
	}
	if f.TLSCertFile != "" || f.TLSPrivateKeyFile != "" {
		c.Server.Certificate = CertificateFiles(f.TLSCertFile, f.TLSPrivateKeyFile)
		_, err := c.Server.Certificate()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ReadPool returns the PEM-encoded certificates in the file path, those of client certificate authorities,
// for Access.ClientCA. A file without a certificate is an error.
func ReadPool(path string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading client CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("reading client CA file: no certificate in %s", path)
	}
	return pool, nil
}

// CertificateFiles returns a function for Server.Certificate that returns the certificate in the files cert
// and key, and reads them again when they have changed. The function is safe for concurrent use.
func CertificateFiles(cert, key string) func() (*tls.Certificate, error) {
	return (&pki.Files{Context: "reading the kubelet's certificate", CertFile: cert, KeyFile: key}).Certificate
}
