// Package debugserver implements the secure port of components that do not serve an API. It serves
// health checks to every client, and metrics and profiles to clients that the API server
// authorizes.
package debugserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"hyperkube/internal/serving/componentmetrics"
	"hyperkube/internal/serving/tlsdefaults"
	"hyperkube/internal/serving/zpages"
)

// Config is the configuration of a Server: what the port of a component serves and to whom.
type Config struct {
	// Component is the component name in errors and on the pages /statusz and /flagz.
	Component string
	// Addr is host:port. Port 0 selects any free port.
	Addr string
	// CertFile and KeyFile contain the serving certificate and key, which New reads once. If both are empty, a
	// self-signed certificate is generated.
	CertFile, KeyFile string
	// ClientCAFile contains the CAs of client certificates. If it is empty, client certificates are
	// not accepted.
	ClientCAFile string
	// Reviews is the client for token reviews and subject access reviews. If it is nil, only
	// members of system:masters can access more than health checks.
	Reviews kubernetes.Interface
	// Metrics is the source of /metrics. If it is nil, only the metrics that all components have in common are
	// served.
	Metrics prometheus.Gatherer
	// Checks are the checks of /readyz, in order.
	Checks []Check
	// Live are the checks of /healthz and /livez, in order.
	Live []Check
	// Certificate returns the current serving certificate and replaces CertFile and KeyFile. It may
	// be nil.
	Certificate func() (*tls.Certificate, error)
	// ClientCA contains the CAs of client certificates and replaces ClientCAFile. It may be nil.
	ClientCA *x509.CertPool
	// Flags are the command line flags of the component, which /flagz reports. If it is nil, /flagz is not served.
	Flags zpages.Flags
	// ConfigName and Configuration are the name and content of /configz. If Configuration is nil,
	// /configz is not served.
	ConfigName    string
	Configuration func() any
	// Level is the log level that /debug/flags/v changes. If it is nil, the level cannot be
	// changed.
	Level *slog.LevelVar
	// NoProfiling disables the profiling endpoints below /debug/pprof and the endpoint /debug/flags/v.
	NoProfiling bool
	// Paths are additional handlers, by path, that are served to authorized clients. They replace the default
	// handlers of the same paths, except for /statusz and the health checks.
	Paths map[string]http.Handler
}

// Check is a named health check of a component, for /healthz, /livez and /readyz. An endpoint responds with status
// 500 if one of its checks fails.
type Check struct {
	Name string
	// Check returns why the check fails, or nil. It must be safe for concurrent use.
	Check func() error
}

// Server serves the secure port of one component, such as the scheduler: health, metrics and
// debugging pages.
type Server struct {
	cfg   Config
	tls   *tls.Config
	ready chan struct{}
	addr  net.Addr // valid after ready is closed
}

// New returns a Server for cfg, with certificates that it reads from files or generates. It returns an error if only
// one of CertFile and KeyFile is set, or if a file cannot be read. Run opens the port.
func New(cfg Config) (*Server, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("serving the port of %s: a certificate and its key must be specified together", cfg.Component)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = componentmetrics.Page()
	}
	s := &Server{cfg: cfg, ready: make(chan struct{})}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites(), NextProtos: []string{"h2", "http/1.1"}}
	if cfg.Certificate != nil {
		s.tls.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cfg.Certificate() }
	} else {
		cert, err := s.certificate()
		if err != nil {
			return nil, err
		}
		s.tls.Certificates = []tls.Certificate{cert}
	}
	if cfg.ClientCA != nil {
		s.tls.ClientCAs, s.tls.ClientAuth = cfg.ClientCA, tls.VerifyClientCertIfGiven
	} else if cfg.ClientCAFile != "" {
		pem, err := os.ReadFile(cfg.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading client CAs: %w", err)
		}
		s.tls.ClientCAs = x509.NewCertPool()
		if !s.tls.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificates in %s", cfg.ClientCAFile)
		}
		s.tls.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return s, nil
}

// Ready returns a channel that is closed when the port is open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr returns the listening address. It is valid once the server is ready.
func (s *Server) Addr() net.Addr { return s.addr }

// Run opens the port and serves it until ctx is done, which closes all connections; it then returns nil. It returns
// an error if the port cannot be opened or accepting connections fails. It may be called only once.
func (s *Server) Run(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serving the port of %s: %w", s.cfg.Component, err)
	}
	s.addr = l.Addr()
	// net/http supports HTTP/2 only if it terminates TLS itself.
	hs := &http.Server{
		Handler: s.handler(), TLSConfig: s.tls, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	failed := make(chan error, 1)
	go func() { failed <- hs.ServeTLS(l, "", "") }()
	close(s.ready)
	select {
	case <-ctx.Done():
		_ = hs.Close()
		_ = <-failed // always http.ErrServerClosed
		return nil
	case err := <-failed:
		return fmt.Errorf("serving the port of %s: %w", s.cfg.Component, err)
	}
}

// certificate reads the configured serving certificate, or generates a self-signed one for the host name, localhost
// and 127.0.0.1 if none is configured.
func (s *Server) certificate() (tls.Certificate, error) {
	if s.cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
		if err != nil {
			return cert, fmt.Errorf("reading serving certificate: %w", err)
		}
		return cert, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	pem, key, err := certutil.GenerateSelfSignedCertKey(host, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("creating serving certificate: %w", err)
	}
	return tls.X509KeyPair(pem, key)
}

// handler returns the handler of all pages of the port. /healthz, /livez and /readyz are served to every client, all
// other paths (metrics, debugging, configuration) only to clients that authorize allows.
func (s *Server) handler() http.Handler {
	slis := componentmetrics.NewHealth()
	open := http.NewServeMux()
	checks := map[string][]Check{"healthz": s.cfg.Live, "livez": s.cfg.Live, "readyz": s.cfg.Checks}
	paths := map[string]http.Handler{
		"/metrics":      componentmetrics.Handler(s.cfg.Metrics),
		"/metrics/slis": slis.Handler(),
	}
	if s.cfg.Flags != nil {
		paths["/flagz"] = zpages.Flagz(s.cfg.Component, s.cfg.Flags)
	}
	if s.cfg.Configuration != nil {
		paths["/configz"] = zpages.Configz(s.cfg.ConfigName, s.cfg.Configuration)
	}
	if !s.cfg.NoProfiling {
		maps.Copy(paths, zpages.Profiles())
		if s.cfg.Level != nil {
			maps.Copy(paths, zpages.DebugFlags(s.cfg.Level))
		}
	}
	maps.Copy(paths, s.cfg.Paths)
	known := append(slices.Collect(maps.Keys(paths)), "/healthz", "/livez", "/readyz", "/statusz")
	paths["/statusz"] = zpages.Statusz(s.cfg.Component, slices.DeleteFunc(known, func(p string) bool { return strings.HasPrefix(p, "/debug/") })...)
	guarded := http.NewServeMux()
	for path, h := range paths {
		guarded.Handle(path, h)
	}
	for name, list := range checks {
		open.HandleFunc("/"+name, health(name, list, slis))
	}
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		code, err := s.authorize(r)
		if err != nil {
			http.Error(w, err.Error(), code)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	return open
}

// health returns the handler of a health endpoint with the name: healthz, livez or readyz. It runs all checks,
// responds in the format of Kubernetes components, with 500 and the names of the failed checks if one fails, and
// records the results in slis. A successful response lists the checks only if the query contains verbose.
//
// https://kubernetes.io/docs/reference/using-api/health-checks/
func health(name string, checks []Check, slis *componentmetrics.Health) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		text.WriteString("[+]ping ok\n")
		failed := false
		for _, c := range checks {
			err := c.Check()
			slis.Observe(c.Name, name, err)
			if err != nil {
				failed = true
				fmt.Fprintf(&text, "[-]%s failed: reason withheld\n", c.Name)
				continue
			}
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache, private")
		if failed {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprintf(w, "%s%s check failed\n", text.String(), name)
			return
		}
		if _, verbose := r.URL.Query()["verbose"]; verbose {
			_, _ = fmt.Fprintf(w, "%s%s check passed\n", text.String(), name)
			return
		}
		_, _ = io.WriteString(w, "ok")
	}
}
