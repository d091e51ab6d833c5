package logging

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/logging/query"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/serving/plainhttp"
	"hyperkube/internal/serving/tlsdefaults"
)

// agentName is the name in the certificates of agents.
const agentName = "hyperkube-logging-agent"

// serveAPI serves the log API until ctx is done. Before, it waits for the CA.
func (a *Agent) serveAPI(ctx context.Context) error {
	ca, err := a.awaitCA(ctx)
	if err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	spec := pki.Server(agentName, agentName)
	spec.Client = true
	spec.Validity = time.Until(ca.Cert.NotAfter) // the certificate exists only in memory
	pair, err := ca.NewPair(spec)
	if err != nil {
		return fmt.Errorf("creating certificate: %w", err)
	}
	config := &tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, RootCAs: ca.Pool(), ServerName: agentName, ClientAuth: tls.RequestClientCert,
		MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites(), NextProtos: []string{"h2", "http/1.1"},
	}
	kube := a.cfg.Clients.Kube
	peers := query.NewEndpoints(kube, a.cfg.Namespace, a.cfg.Service, a.cfg.Node, config.Clone())
	defer peers.Close()
	handler, err := query.New(query.Config{Node: a.cfg.Node, Store: a.store, Kube: kube, PeerCA: ca.Pool(), Peers: peers, Log: a.cfg.Log})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", a.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	close(a.ready)
	return serve(ctx, handler, tls.NewListener(listener, config), a.cfg.Log)
}

// serveStatus serves health checks and metrics until ctx is done.
func (a *Agent) serveStatus(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-a.ready:
			fmt.Fprint(w, "ok")
		default:
			http.Error(w, "the API is not served yet", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry(), promhttp.HandlerOpts{}))
	server := plainhttp.ServeListener(listener, mux)
	defer server.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-server.Done():
		return fmt.Errorf("serving: %w", server.Err())
	}
}

// serve serves the API until ctx is done. It closes the listener.
func serve(ctx context.Context, handler http.Handler, listener net.Listener, log *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// awaitCA returns the CA of the agents. It retries until it succeeds, or returns an error if ctx is done.
func (a *Agent) awaitCA(ctx context.Context) (*pki.CA, error) {
	retry := backoff.Backoff{First: time.Second, Max: 30 * time.Second, Jitter: 0.2}
	for {
		ca, err := a.loadCA(ctx)
		if err == nil {
			return ca, nil
		}
		if ctx.Err() == nil && !retry.Started() {
			a.cfg.Log.Warn("reading the CA of the logging agents failed; logs are collected, but this agent cannot search them, retrying with back-off", "secret", a.cfg.Namespace+"/"+a.cfg.CASecret, "err", err)
		}
		if !retry.Pause(ctx) {
			return nil, context.Cause(ctx)
		}
	}
}

// loadCA reads the CA from its Secret. If the Secret is empty, it creates the CA. Of several agents that do so, the API server accepts the first.
func (a *Agent) loadCA(ctx context.Context) (*pki.CA, error) {
	secrets := a.cfg.Clients.Kube.CoreV1().Secrets(a.cfg.Namespace)
	secret, err := secrets.Get(ctx, a.cfg.CASecret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading Secret: %w", err)
	}
	if cert := secret.Data[corev1.TLSCertKey]; len(cert) > 0 {
		ca, err := pki.ParseCA(cert, secret.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return nil, fmt.Errorf("%w; delete the data of the Secret and restart all agents", err)
		}
		return ca, nil
	}
	ca, err := pki.NewCA("hyperkube-logging")
	if err != nil {
		return nil, fmt.Errorf("creating CA: %w", err)
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: ca.CertPEM, corev1.TLSPrivateKeyKey: ca.KeyPEM}
	if _, err = secrets.Update(ctx, secret, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return a.loadCA(ctx)
	} else if err != nil {
		return nil, fmt.Errorf("writing Secret: %w", err)
	}
	return ca, nil
}
