// Package debugserver is the secure port that components without an API of
// their own have: health to all, metrics and profiles to those whom the API
// server lets.
package debugserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
)

// Config of a Server.
type Config struct {
	// Component is whose port it is, for errors.
	Component string
	// Addr is host and port; port 0 is any free one.
	Addr string
	// CertFile and KeyFile are the serving certificate's; without them a
	// self-signed certificate is made.
	CertFile, KeyFile string
	// ClientCAFile holds the CAs of client certificates; empty: none are
	// taken.
	ClientCAFile string
	// Reviews is where tokens and permissions are asked for; nil: only
	// members of system:masters see more than health.
	Reviews kubernetes.Interface
	// Metrics is what /metrics tells; nil means NewRegistry.
	Metrics prometheus.Gatherer
	// Checks are what /readyz asks, in order.
	Checks []Check
}

// Check is one thing that must be so for a component to be ready.
type Check struct {
	Name string
	// Check returns why it is not so. It may be called by several goroutines.
	Check func() error
}

// Server answers on the secure port.
type Server struct {
	cfg   Config
	tls   *tls.Config
	ready chan struct{}
	addr  net.Addr // valid once ready
}

// NewRegistry returns a registry of metrics with those of Go and of the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// New validates cfg and reads its certificates.
func New(cfg Config) (*Server, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("serving the port of %s: a certificate and its key are given together or not at all", cfg.Component)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewRegistry()
	}
	s := &Server{cfg: cfg, ready: make(chan struct{})}
	cert, err := s.certificate()
	if err != nil {
		return nil, err
	}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	if cfg.ClientCAFile != "" {
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

// Ready is closed once the port is open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr returns where it listens, once it is ready.
func (s *Server) Addr() net.Addr { return s.addr }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serving the port of %s: %w", s.cfg.Component, err)
	}
	s.addr = l.Addr()
	// net/http speaks HTTP/2 only when it does TLS itself.
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
		_ = <-failed // says no more than that it was closed
		return nil
	case err := <-failed:
		return fmt.Errorf("serving the port of %s: %w", s.cfg.Component, err)
	}
}

func (s *Server) certificate() (tls.Certificate, error) {
	if s.cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
		if err != nil {
			return cert, fmt.Errorf("reading the serving certificate: %w", err)
		}
		return cert, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	pem, key, err := certutil.GenerateSelfSignedCertKey(host, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a serving certificate: %w", err)
	}
	return tls.X509KeyPair(pem, key)
}

func (s *Server) handler() http.Handler {
	open := http.NewServeMux()
	open.HandleFunc("/healthz", health("healthz", nil))
	open.HandleFunc("/livez", health("livez", nil))
	open.HandleFunc("/readyz", health("readyz", s.cfg.Checks))
	guarded := http.NewServeMux()
	guarded.Handle("/metrics", promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{}))
	guarded.HandleFunc("/debug/pprof/", pprof.Index)
	guarded.HandleFunc("/debug/pprof/profile", pprof.Profile)
	guarded.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	guarded.HandleFunc("/debug/pprof/trace", pprof.Trace)
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		code, err := s.allow(r)
		if err != nil {
			http.Error(w, err.Error(), code)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	return open
}

// health answers as every Kubernetes component does.
// https://kubernetes.io/docs/reference/using-api/health-checks/
func health(name string, checks []Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		text.WriteString("[+]ping ok\n")
		var failed []error
		for _, c := range checks {
			if err := c.Check(); err != nil {
				failed = append(failed, err)
				fmt.Fprintf(&text, "[-]%s failed: reason withheld\n", c.Name)
				continue
			}
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache, private")
		if errors.Join(failed...) != nil {
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
