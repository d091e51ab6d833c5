// Package dns is the cluster's DNS: the Kubernetes DNS specification, answered
// straight from informers, and everything else forwarded to the node's own name
// servers. It runs as pods of the built-in image behind the kube-dns Service.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/plainhttp"
)

// Config of a Server.
type Config struct {
	// Address to answer on over UDP and TCP, such as ":53".
	Address string
	// HealthAddress serves /health and /ready, MetricsAddress /metrics; empty
	// serves none.
	HealthAddress, MetricsAddress string
	// Domain of the cluster, such as "cluster.local".
	Domain string
	// TTL of answers in seconds.
	TTL uint32
	// ResolvConf names the file with the upstream name servers.
	ResolvConf string
	// CustomDir is a folder with files that say which other name servers are
	// asked: the volume of the ConfigMap kube-dns. It may be missing; empty: there
	// is none.
	CustomDir string
	// Lameduck is how long answers go on after Run was told to end, while this
	// server is not ready any more: until every node has heard that others
	// answer.
	Lameduck time.Duration
	// NotUpstream are addresses that lead back here.
	NotUpstream []netip.Addr
	// Informers to answer from; Run starts them.
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
}

// Server answers DNS queries.
type Server struct {
	cfg     Config
	zone    *zone
	cluster *cluster
	forward *forwarder
	ready   chan struct{}
	leaving chan struct{} // closed when Run was told to end
	after   func(time.Duration) <-chan time.Time
	metrics *metrics
}

// New validates cfg.
func New(cfg Config) (*Server, error) {
	if _, ok := dns.IsDomainName(cfg.Domain); !ok || cfg.Domain == "" {
		return nil, fmt.Errorf("%q is no domain name", cfg.Domain)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	forward, err := newForwarder(cfg.ResolvConf, cfg.NotUpstream)
	if err != nil {
		return nil, err
	}
	cluster, err := newCluster(cfg.Informers)
	if err != nil {
		return nil, fmt.Errorf("preparing informers: %w", err)
	}
	s := &Server{
		cfg:     cfg,
		cluster: cluster,
		zone:    &zone{domain: dns.Fqdn(strings.ToLower(cfg.Domain)), ttl: cfg.TTL, source: cluster},
		forward: forward,
		ready:   make(chan struct{}),
		leaving: make(chan struct{}),
		after:   time.After,
		metrics: newMetrics(cfg.Address),
	}
	return s, nil
}

// Ready is closed once answers are right.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run answers until ctx ends, and then for the time of Lameduck. It listens only
// when it knows the cluster, so that nobody is told that a service is not there
// because it is not known yet. It may be called once.
func (s *Server) Run(told context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(told))
	defer cancel()
	failed := make(chan error, 4)
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, plain := range []struct {
		what, address string
		handler       http.Handler
	}{
		{"health", s.cfg.HealthAddress, s.health()},
		{"metrics", s.cfg.MetricsAddress, promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{})},
	} {
		if plain.address == "" {
			continue
		}
		server, err := plainhttp.Serve(plain.address, plain.handler)
		if err != nil {
			return fmt.Errorf("serving %s: %w", plain.what, err)
		}
		stops = append(stops, server.Close)
		go func() {
			<-server.Ended()
			failed <- server.Err()
		}()
	}

	s.cfg.Informers.Start(ctx.Done())
	defer s.cfg.Informers.Shutdown()
	defer cancel()
	if !cache.WaitFor(told, "", s.cluster.synced()...) {
		return nil
	}
	if s.cfg.CustomDir != "" {
		var following sync.WaitGroup
		following.Go(func() { s.followCustom(ctx) })
		stops = append(stops, func() { cancel(); following.Wait() })
	}
	udp, err := net.ListenPacket("udp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	tcp, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		udp.Close()
		return fmt.Errorf("listening: %w", err)
	}
	for _, server := range []*dns.Server{
		{PacketConn: udp, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(ctx, w, q, false) })},
		{Listener: tcp, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(ctx, w, q, true) })},
	} {
		go func() { failed <- server.ActivateAndServe() }()
		stops = append(stops, func() { _ = server.Shutdown() })
	}
	s.cfg.Log.Info("answering", "address", s.cfg.Address, "domain", s.zone.domain, "upstreams", s.forward.upstreams)
	close(s.ready)
	select {
	case <-told.Done():
	case err := <-failed:
		return fmt.Errorf("a listener ended: %w", err)
	}
	close(s.leaving)
	select {
	case <-s.after(s.cfg.Lameduck):
		return nil
	case err := <-failed:
		return fmt.Errorf("a listener ended: %w", err)
	}
}

func (s *Server) health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") })
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-s.leaving:
			http.Error(w, "the server is shutting down", http.StatusServiceUnavailable)
			return
		default:
		}
		select {
		case <-s.ready:
			fmt.Fprint(w, "OK")
		default:
			http.Error(w, "the cluster is not known yet", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, query *dns.Msg, tcp bool) {
	began := time.Now()
	answer, who := s.answer(ctx, query, tcp)
	size := dns.MaxMsgSize
	if !tcp {
		size = dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
	}
	if opt := query.IsEdns0(); opt != nil && answer.IsEdns0() == nil {
		answer.SetEdns0(min(opt.UDPSize(), 4096), opt.Do())
	}
	answer.Truncate(size)
	s.metrics.count(w.RemoteAddr(), query, answer, who, tcp, time.Since(began))
	if err := w.WriteMsg(answer); err != nil && !errors.Is(err, net.ErrClosed) {
		s.cfg.Log.Debug("could not answer", "client", w.RemoteAddr(), "err", err)
	}
}

// answer makes the message that answers a query, and tells who knew.
func (s *Server) answer(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, string) {
	m := new(dns.Msg)
	if len(query.Question) != 1 || query.Opcode != dns.OpcodeQuery {
		return m.SetRcode(query, dns.RcodeNotImplemented), ""
	}
	q := query.Question[0]
	if q.Qclass != dns.ClassINET {
		return m.SetRcode(query, dns.RcodeRefused), ""
	}
	switch {
	case s.zone.covers(q.Name):
		r := s.zone.resolve(q.Name, q.Qtype)
		s.compose(m, query, r)
		if r.follow != "" {
			s.follow(ctx, m, q.Qtype, r.follow, tcp)
		}
		return m, s.zone.domain
	case dns.IsSubDomain("in-addr.arpa.", q.Name) || dns.IsSubDomain("ip6.arpa.", q.Name):
		if r := s.zone.reverse(q.Name, q.Qtype); r.exists {
			s.compose(m, query, r)
			return m, s.zone.domain
		}
	}
	answer, err := s.forward.exchange(ctx, query, tcp)
	if err != nil {
		s.cfg.Log.Debug("forwarding failed", "name", q.Name, "err", err)
		return m.SetRcode(query, rcodeOf(err)), "."
	}
	answer.Id = query.Id
	return answer, "."
}

func (s *Server) compose(m, query *dns.Msg, r reply) {
	m.SetReply(query)
	m.Authoritative = true
	m.RecursionAvailable = true
	m.Answer, m.Extra = r.answer, r.extra
	if !r.exists {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{s.zone.soa()}
		return
	}
	// Clients tend to take the first: let each be it in turn.
	rand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
}

// maxAliases is how many aliases of the cluster are followed, one to the other.
const maxAliases = 8

// follow adds what an alias leads to, which may be an alias as well. When that cannot
// be told, the aliases alone are the answer.
func (s *Server) follow(ctx context.Context, m *dns.Msg, qtype uint16, target string, tcp bool) {
	for range maxAliases {
		if !s.zone.covers(target) {
			break
		}
		r := s.zone.resolve(target, qtype)
		m.Answer = append(m.Answer, r.answer...)
		if target = r.follow; target == "" {
			return
		}
	}
	if s.zone.covers(target) {
		return // they lead in a circle
	}
	query := new(dns.Msg)
	query.SetQuestion(target, qtype)
	if answer, err := s.forward.exchange(ctx, query, tcp); err == nil {
		m.Answer = append(m.Answer, answer.Answer...)
	}
}
