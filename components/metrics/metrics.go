package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	certutil "k8s.io/client-go/util/cert"

	"hyperkube/internal/client"
)

// Config of a Server.
type Config struct {
	// Clients are of a user who may list nodes and pods, read nodes/metrics
	// and the ConfigMap kube-system/extension-apiserver-authentication.
	Clients *client.Clients
	// Address to serve HTTPS on. The certificate is made for the occasion: the
	// API server is told not to verify it.
	Address string
	// Resolution is how often kubelets are asked; zero means 15 seconds.
	Resolution time.Duration
	// InsecureKubelets does not verify the certificates of kubelets.
	InsecureKubelets bool
	// Log receives what goes wrong; nil: slog's default.
	Log *slog.Logger
}

// Server is the metrics API.
type Server struct {
	cfg      Config
	kubelets *http.Client
	nodes    corelisters.NodeLister
	pods     corelisters.PodLister
	synced   []cache.InformerSynced
	book     book
	trust    *trust
	ready    chan struct{}
}

// scrapeTimeout bounds how long a kubelet may take.
const scrapeTimeout = 10 * time.Second

// New validates cfg and registers with the informers that it needs.
func New(cfg Config) (*Server, error) {
	if cfg.Clients == nil || cfg.Address == "" {
		return nil, errors.New("the metrics server takes clients and an address")
	}
	if cfg.Resolution == 0 {
		cfg.Resolution = 15 * time.Second
	}
	if cfg.Resolution < time.Second {
		return nil, fmt.Errorf("kubelets measure once in ten seconds: a resolution of %v is none", cfg.Resolution)
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
		return nil, fmt.Errorf("reaching kubelets: %w", err)
	}
	core := cfg.Clients.Informers.Core().V1()
	if err := core.Pods().Informer().SetTransform(essence); err != nil {
		return nil, err
	}
	return &Server{
		cfg: cfg, kubelets: httpClient, nodes: core.Nodes().Lister(), pods: core.Pods().Lister(),
		synced: []cache.InformerSynced{core.Nodes().Informer().HasSynced, core.Pods().Informer().HasSynced},
		trust:  &trust{kube: cfg.Clients.Kube}, ready: make(chan struct{}),
	}, nil
}

// essence is what is kept of a pod: whose it is and where.
func essence(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion
	out.Labels, out.CreationTimestamp, out.Spec.NodeName = pod.Labels, pod.CreationTimestamp, pod.Spec.NodeName
	out.Status.Phase = pod.Status.Phase
	return out, nil
}

// Ready is closed once kubelets have been asked for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends. It starts the informers.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey("metrics", nil, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("making a certificate: %w", err), listener.Close())
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return errors.Join(fmt.Errorf("making a certificate: %w", err), listener.Close())
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		ErrorLog:  slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	s.cfg.Clients.Informers.StartWithContext(ctx)
	working.Go(func() { s.follow(ctx) })
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

// follow asks all kubelets again and again until ctx ends.
func (s *Server) follow(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return
	}
	ticker := time.NewTicker(s.cfg.Resolution)
	defer ticker.Stop()
	for first := true; ; first = false {
		s.scrapeAll(ctx)
		if first {
			close(s.ready)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// scrapeAll asks every node's kubelet once, a few at a time.
func (s *Server) scrapeAll(ctx context.Context) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		s.cfg.Log.Error("Could not list nodes", "err", err)
		return
	}
	names := map[string]bool{}
	room := make(chan struct{}, 32)
	var working sync.WaitGroup
	for _, n := range nodes {
		names[n.Name] = true
		room <- struct{}{}
		working.Go(func() {
			defer func() { <-room }()
			got, err := s.scrape(ctx, n)
			if err != nil {
				if ctx.Err() == nil {
					s.cfg.Log.Warn("Could not ask a kubelet for metrics", "node", n.Name, "err", err)
				}
				return
			}
			s.book.add(n.Name, got)
		})
	}
	working.Wait()
	s.book.keep(names)
}

// scrape asks one kubelet.
func (s *Server) scrape(ctx context.Context, n *corev1.Node) (scrape, error) {
	var address string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && address == "" {
				address = a.Address
			}
		}
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if address == "" || port == 0 {
		return nil, errors.New("the node does not tell where its kubelet is")
	}
	url := "https://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/metrics/resource"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.kubelets.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return parse(resp.Body, time.Now())
}
