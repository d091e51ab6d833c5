package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	certutil "k8s.io/client-go/util/cert"

	"hyperkube/components/metrics/history"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/serving/frontproxy"
	"hyperkube/internal/serving/tlsdefaults"
)

// Config configures a Server.
type Config struct {
	// Clients authenticate as a user that may list nodes and pods, and read nodes/stats and the
	// ConfigMap kube-system/extension-apiserver-authentication.
	Clients *client.Clients
	// Address to serve HTTPS on. The certificate is self-signed; the APIService disables its
	// verification.
	Address string
	// Resolution is the scrape interval of kubelets. Zero means 15 seconds.
	Resolution time.Duration
	// InsecureKubelets disables the verification of the kubelets' serving certificates.
	InsecureKubelets bool
	// Log receives warnings and errors. Nil means slog's default.
	Log *slog.Logger
}

// Server scrapes the kubelets and serves the metrics API in its own process, behind the aggregation
// layer of API servers.
type Server struct {
	cfg        Config
	api        api
	historyAPI historyAPI
	scraper    *scraper
	auth       *frontproxy.Authenticator
	ready      chan struct{}
}

// New validates cfg and returns a Server. A resolution of less than a second is an error; 0 means 15 seconds.
// It registers with the informers of nodes and pods, which Run starts.
func New(cfg Config) (*Server, error) {
	if cfg.Clients == nil || cfg.Address == "" {
		return nil, errors.New("metrics server: clients and address are required")
	}
	if cfg.Resolution == 0 {
		cfg.Resolution = 15 * time.Second
	}
	if cfg.Resolution < time.Second {
		return nil, fmt.Errorf("metrics server: resolution %v is below one second", cfg.Resolution)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	kubelets := rest.CopyConfig(cfg.Clients.REST)
	if cfg.InsecureKubelets {
		kubelets.TLSClientConfig = rest.TLSClientConfig{Insecure: true, CertFile: kubelets.CertFile, KeyFile: kubelets.KeyFile}
	}
	kubelets.Timeout = scrapeTimeout
	httpClient, err := rest.HTTPClientFor(kubelets)
	if err != nil {
		return nil, fmt.Errorf("creating kubelet client: %w", err)
	}
	core := cfg.Clients.Informers.Core().V1()
	if err := core.Pods().Informer().SetTransform(stripPod); err != nil {
		return nil, err
	}
	scrapes, store := &scrapeStore{}, history.NewStore(history.Limit)
	return &Server{
		cfg:        cfg,
		api:        api{nodes: core.Nodes().Lister(), pods: core.Pods().Lister(), scrapes: scrapes},
		historyAPI: historyAPI{store: store, nodes: core.Nodes().Lister()},
		scraper: &scraper{
			kubelets: httpClient, nodes: core.Nodes().Lister(), scrapes: scrapes, interval: cfg.Resolution, log: cfg.Log,
			history: recorder{store: store, pods: core.Pods().Lister()},
			synced:  []cache.InformerSynced{core.Nodes().Informer().HasSynced, core.Pods().Informer().HasSynced},
		},
		auth: frontproxy.New(cfg.Clients.Kube), ready: make(chan struct{}),
	}, nil
}

// stripPod reduces a pod in the informer's cache to the fields that the server needs: its identity,
// labels, node, phase and restarts.
func stripPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion
	out.Labels, out.CreationTimestamp, out.Spec.NodeName = pod.Labels, pod.CreationTimestamp, pod.Spec.NodeName
	out.Status.Phase = pod.Status.Phase
	out.Status.InitContainerStatuses, out.Status.ContainerStatuses = stripStatuses(pod.Status.InitContainerStatuses), stripStatuses(pod.Status.ContainerStatuses)
	return out, nil
}

// stripStatuses reduces the statuses of containers to the numbers of restarts, without those that have not been restarted.
func stripStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range statuses {
		if n := statuses[i].RestartCount; n > 0 {
			out = append(out, corev1.ContainerStatus{RestartCount: n})
		}
	}
	return out
}

// Ready returns a channel that is closed once all kubelets have been scraped for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run starts the informers, scrapes kubelets and serves until ctx is canceled; requests in flight then have 5
// seconds to finish. It returns an error if it cannot listen or serving fails.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey("metrics", nil, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("creating serving certificate: %w", err), listener.Close())
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return errors.Join(fmt.Errorf("creating serving certificate: %w", err), listener.Close())
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites()},
		ErrorLog:  slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	s.cfg.Clients.Informers.StartWithContext(ctx)
	working.Go(func() { s.scrapeLoop(ctx) })
	defer func() {
		cancel()
		working.Wait()
		s.cfg.Clients.Informers.Shutdown()
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serving metrics: %w", err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	return nil
}

// scrapeLoop scrapes all kubelets at each multiple of the resolution until ctx is cancelled. After the first time the
// server is ready.
func (s *Server) scrapeLoop(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.scraper.synced...) {
		return
	}
	for first := true; ; first = false {
		s.scraper.scrapeAll(ctx)
		if first {
			close(s.ready)
		}
		if !lifecycle.Pause(ctx, untilNext(time.Now(), s.cfg.Resolution)) {
			return
		}
	}
}
