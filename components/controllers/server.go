package controllers

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
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
)

// server answers on the secure port: health to all, the rest to those whom the
// API server lets.
type server struct {
	addr              string
	certFile, keyFile string // empty: a self-signed certificate is made
	clientCAFile      string // empty: no client certificates
	// reviews is where tokens and permissions are asked for.
	reviews kubernetes.Interface
}

// run serves until ctx ends.
func (s *server) run(ctx context.Context) error {
	cert, err := s.certificate()
	if err != nil {
		return err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	if s.clientCAFile != "" {
		pem, err := os.ReadFile(s.clientCAFile)
		if err != nil {
			return fmt.Errorf("reading client CAs: %w", err)
		}
		conf.ClientCAs = x509.NewCertPool()
		if !conf.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("no certificates in %s", s.clientCAFile)
		}
		conf.ClientAuth = tls.VerifyClientCertIfGiven
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("serving the controller manager's port: %w", err)
	}
	hs := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(tls.NewListener(l, conf)) }()
	select {
	case <-ctx.Done():
		_ = hs.Close()
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serving the controller manager's port: %w", err)
	}
}

func (s *server) certificate() (tls.Certificate, error) {
	if s.certFile != "" {
		cert, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
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

func (s *server) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	open := http.NewServeMux()
	healthy := func(w http.ResponseWriter, r *http.Request) {
		if _, verbose := r.URL.Query()["verbose"]; verbose {
			_, _ = io.WriteString(w, "[+]ping ok\nhealthz check passed\n")
			return
		}
		_, _ = io.WriteString(w, "ok")
	}
	open.HandleFunc("/healthz", healthy)
	open.HandleFunc("/livez", healthy)
	open.HandleFunc("/readyz", healthy)
	guarded := http.NewServeMux()
	guarded.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
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

// allow asks the API server who sends r and whether they may.
func (s *server) allow(r *http.Request) (int, error) {
	var spec authorizationv1.SubjectAccessReviewSpec
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		subject := r.TLS.VerifiedChains[0][0].Subject
		spec.User, spec.Groups = subject.CommonName, append(append([]string(nil), subject.Organization...), "system:authenticated")
	case bearer && s.reviews != nil:
		tr, err := s.reviews.AuthenticationV1().TokenReviews().Create(r.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return http.StatusInternalServerError, errors.New("the token could not be reviewed")
		}
		if !tr.Status.Authenticated {
			return http.StatusUnauthorized, errors.New("Unauthorized")
		}
		u := tr.Status.User
		spec.User, spec.Groups, spec.UID = u.Username, u.Groups, u.UID
	default:
		spec.User, spec.Groups = "system:anonymous", []string{"system:unauthenticated"}
	}
	for _, g := range spec.Groups {
		if g == "system:masters" {
			return 0, nil
		}
	}
	if s.reviews == nil {
		return http.StatusForbidden, errors.New("forbidden")
	}
	spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}
	sar, err := s.reviews.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, errors.New("the permission could not be reviewed")
	}
	if !sar.Status.Allowed {
		return http.StatusForbidden, fmt.Errorf("forbidden: User %q cannot %s path %q", spec.User, spec.NonResourceAttributes.Verb, r.URL.Path)
	}
	return 0, nil
}
