// Package debugserver is the secure port that components without an API of
// their own have: health to all, metrics and profiles to those whom the API
// server lets.
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

	"hyperkube/internal/measure"
	"hyperkube/internal/zpages"
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
	// Metrics is what /metrics tells; nil: of the process alone.
	Metrics prometheus.Gatherer
	// Checks are what /readyz asks, in order.
	Checks []Check
	// Live are what /healthz and /livez ask.
	Live []Check
	// Certificate returns the serving certificate of now, in place of files; it
	// may be nil.
	Certificate func() (*tls.Certificate, error)
	// ClientCA has the CAs of client certificates, in place of ClientCAFile; it
	// may be nil.
	ClientCA *x509.CertPool
	// Flags are those with which the component was started; nil: nothing is
	// told of them.
	Flags zpages.Flags
	// ConfigName and Configuration are what /configz tells; nil: nothing.
	ConfigName    string
	Configuration func() any
	// Level is changed by /debug/flags/v; nil: it is as it is.
	Level *slog.LevelVar
	// NoProfiling leaves profiles and the level of logs out.
	NoProfiling bool
	// Paths are more that is served to those whom the API server lets.
	Paths map[string]http.Handler
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

// New validates cfg and reads its certificates.
func New(cfg Config) (*Server, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("serving the port of %s: a certificate and its key are given together or not at all", cfg.Component)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = measure.Page()
	}
	s := &Server{cfg: cfg, ready: make(chan struct{})}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
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
	slis := measure.NewHealth()
	open := http.NewServeMux()
	checks := map[string][]Check{"healthz": s.cfg.Live, "livez": s.cfg.Live, "readyz": s.cfg.Checks}
	paths := map[string]http.Handler{
		"/metrics":      measure.Handler(s.cfg.Metrics),
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
		code, err := s.allow(r)
		if err != nil {
			http.Error(w, err.Error(), code)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	return open
}

// health answers as every Kubernetes component does, and has slis keep what the
// checks said.
// https://kubernetes.io/docs/reference/using-api/health-checks/
func health(name string, checks []Check, slis *measure.Health) http.HandlerFunc {
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
