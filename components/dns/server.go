// Package dns implements the cluster DNS server. It answers names of the Kubernetes DNS
// specification from informers and forwards all other queries to the name servers of the node. It
// runs in pods of the built-in image behind the kube-dns Service.
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

	"hyperkube/internal/serving/plainhttp"
)

// Config configures a Server.
type Config struct {
	// Address to listen on over UDP and TCP, such as ":53".
	Address string
	// HealthAddress is the listen address of /health and /ready, MetricsAddress that of /metrics.
	// If empty, they are not served.
	HealthAddress, MetricsAddress string
	// Domain of the cluster, such as "cluster.local".
	Domain string
	// TTL of records in seconds.
	TTL uint32
	// ResolvConf is the path to the file with the upstream name servers.
	ResolvConf string
	// NodeResolvConf is the path to a file with the name servers that the node uses now, which take precedence. It is
	// read again when it changes. The file or its directory may be missing. Empty disables this.
	NodeResolvConf string
	// CustomDir is a directory with files that override the upstream name servers: the volume of
	// the ConfigMap kube-dns. The directory may be missing. Empty disables the override.
	CustomDir string
	// Lameduck is how long the server keeps answering after the context of Run is cancelled. It is
	// not ready during that time, so that every node stops sending queries before the server stops.
	Lameduck time.Duration
	// NotUpstream are addresses that lead back to this server and are never used as upstreams.
	NotUpstream []netip.Addr
	// Informers provide the Services, EndpointSlices and Namespaces. Run starts them.
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
}

// Server is the cluster DNS server. Run starts it.
type Server struct {
	cfg          Config
	zone         *zone
	cluster      *informerSource
	forward      *forwarder
	ready        chan struct{}
	shuttingDown chan struct{} // closed when shutdown begins
	after        func(time.Duration) <-chan time.Time
	metrics      *metrics
}

// New validates cfg and returns a Server. It returns an error if the domain is invalid or the
// resolv.conf file cannot be read.
func New(cfg Config) (*Server, error) {
	if _, ok := dns.IsDomainName(cfg.Domain); !ok || cfg.Domain == "" {
		return nil, fmt.Errorf("%q is not a domain name", cfg.Domain)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	forward, err := newForwarder(cfg.ResolvConf, cfg.NotUpstream)
	if err != nil {
		return nil, err
	}
	cluster, err := newInformerSource(cfg.Informers)
	if err != nil {
		return nil, fmt.Errorf("creating informers: %w", err)
	}
	s := &Server{
		cfg:          cfg,
		cluster:      cluster,
		zone:         &zone{domain: dns.Fqdn(strings.ToLower(cfg.Domain)), ttl: cfg.TTL, source: cluster},
		forward:      forward,
		ready:        make(chan struct{}),
		shuttingDown: make(chan struct{}),
		after:        time.After,
		metrics:      newMetrics(cfg.Address),
	}
	return s, nil
}

// Ready returns a channel that is closed when the informers have synced and the server listens.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx is canceled, and then for the duration of Lameduck. It starts to listen
// after the informers have synced, so that it does not answer NXDOMAIN for existing Services. It
// returns an error if it cannot listen or a listener fails. It may be called once.
func (s *Server) Run(parent context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
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
			<-server.Done()
			failed <- server.Err()
		}()
	}

	s.cfg.Informers.Start(ctx.Done())
	defer s.cfg.Informers.Shutdown()
	defer cancel()
	if !cache.WaitFor(parent, "", s.cluster.syncCheckers()...) {
		return nil
	}
	var following sync.WaitGroup
	if s.cfg.CustomDir != "" {
		following.Go(func() { s.watchCustom(ctx) })
	}
	if s.cfg.NodeResolvConf != "" {
		s.loadNodeServers() // before the first query
		following.Go(func() { s.followNodeServers(ctx) })
	}
	stops = append(stops, func() { cancel(); following.Wait(); s.forward.close() })
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
	s.cfg.Log.Info("dns server listens for queries", "address", s.cfg.Address, "domain", s.zone.domain, "upstreams", s.forward.nodeServers())
	close(s.ready)
	select {
	case <-parent.Done():
	case err := <-failed:
		return fmt.Errorf("dns listener failed: %w", err)
	}
	close(s.shuttingDown)
	select {
	case <-s.after(s.cfg.Lameduck):
		return nil
	case err := <-failed:
		return fmt.Errorf("dns listener failed: %w", err)
	}
}

func (s *Server) health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") })
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-s.shuttingDown:
			http.Error(w, "the server is shutting down", http.StatusServiceUnavailable)
			return
		default:
		}
		select {
		case <-s.ready:
			fmt.Fprint(w, "OK")
		default:
			http.Error(w, "informers have not synced", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, query *dns.Msg, tcp bool) {
	began := time.Now()
	answer, zone := s.answer(ctx, query, tcp)
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
	s.metrics.count(w.RemoteAddr(), query, answer, zone, tcp, time.Since(began))
	if err := w.WriteMsg(answer); err != nil && !errors.Is(err, net.ErrClosed) {
		s.cfg.Log.Debug("sending dns response failed, the client must repeat its query", "client", w.RemoteAddr(), "err", err)
	}
}

// answer returns the response to a query, see resolve. If a rewrite applies to its name, another name is looked up.
func (s *Server) answer(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, string) {
	if custom := s.forward.custom.Load(); custom != nil && len(query.Question) == 1 {
		if name, ok := custom.rewrites.find(query.Question[0].Name); ok {
			changed := query.Copy()
			changed.Question[0].Name = name
			m, zone := s.resolve(ctx, changed, tcp)
			restoreName(m, query, name)
			return m, zone
		}
	}
	return s.resolve(ctx, query, tcp)
}

// resolve returns the response to a query, and the zone that answered it for metrics: the cluster domain, "." for
// upstream name servers, or "" if the query was rejected. tcp is set if the query arrived over TCP; upstream name
// servers are then asked over TCP too.
func (s *Server) resolve(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, string) {
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
			s.followAlias(ctx, m, q.Qtype, r.follow, tcp)
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
		s.cfg.Log.Debug("forwarding dns query to upstream name servers failed, answering with an error", "name", q.Name, "err", err)
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
	// Clients tend to use the first record, so the order is random.
	rand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
}

// maxAliases limits the length of a chain of ExternalName services within the cluster.
const maxAliases = 8

// followAlias resolves target, the target of a CNAME record in m, and adds its records of the type
// qtype to m. The target may be another CNAME. If it cannot be resolved, m contains only the CNAME
// records.
func (s *Server) followAlias(ctx context.Context, m *dns.Msg, qtype uint16, target string, tcp bool) {
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
		return // the aliases form a loop
	}
	query := new(dns.Msg)
	query.SetQuestion(target, qtype)
	if answer, err := s.forward.exchange(ctx, query, tcp); err == nil {
		m.Answer = append(m.Answer, answer.Answer...)
	}
}
