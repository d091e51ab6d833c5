package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// forwarder forwards queries for names outside of the cluster to upstream name servers. It is safe
// for concurrent use.
type forwarder struct {
	// upstreams are the name servers of the pod's own resolv.conf.
	upstreams []nameServer
	// node are the name servers that the node uses now. They replace upstreams. It is nil if they are not known.
	node    atomic.Pointer[[]nameServer]
	timeout time.Duration
	// maxInFlight limits the number of queries in flight, so that unreachable name servers cannot exhaust
	// memory and break names of the cluster as well. Zero means no limit.
	maxInFlight int32
	inFlight    atomic.Int32
	// custom overrides upstreams and node. It is nil without a custom configuration.
	custom atomic.Pointer[customConfig]
	// tls sends queries over TLS. It is nil if no name server requires that.
	tls atomic.Pointer[tlsClient]
	// refreshing waits for the queries that renew answers in the cache before they expire.
	refreshing sync.WaitGroup
	// cache caches recent answers. It may be nil.
	cache *answerCache
}

// defaultMaxInFlight is the default of maxInFlight, as in the usual configuration of CoreDNS.
const defaultMaxInFlight = 1000

// newForwarder returns a forwarder to the name servers in a resolv.conf file, see readUpstreams.
func newForwarder(resolvConf string, not []netip.Addr) (*forwarder, error) {
	upstreams, err := readUpstreams(resolvConf, not)
	if err != nil {
		return nil, err
	}
	return &forwarder{upstreams: upstreams, timeout: 2 * time.Second, maxInFlight: defaultMaxInFlight, cache: newAnswerCache()}, nil
}

// setCustom applies a custom configuration.
func (f *forwarder) setCustom(c *customConfig) {
	old := f.tls.Swap(newTLSClient(f.timeout, c.roots)) // before a query can use a name server of c
	f.custom.Store(c)
	old.close()
}

// close waits for queries that renew cached answers, and closes idle connections to name servers.
func (f *forwarder) close() {
	f.refreshing.Wait()
	f.tls.Load().close()
}

// readUpstreams returns the name servers in a resolv.conf file. It skips invalid and unspecified addresses,
// and servers that lead back to this server: loopback addresses (a stub resolver on the node would be the pod's own
// loopback) and the addresses in not. It returns an error if the file cannot be read.
func readUpstreams(resolvConf string, not []netip.Addr) ([]nameServer, error) {
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("reading the upstream name servers: %w", err)
	}
	var upstreams []nameServer
	for _, server := range config.Servers {
		addr, err := netip.ParseAddr(server)
		if err != nil || addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(not, addr.Unmap()) {
			continue
		}
		port, err := strconv.ParseUint(config.Port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("reading the upstream name servers: port %s: %w", config.Port, err)
		}
		upstreams = append(upstreams, nameServer{addr: netip.AddrPortFrom(addr, uint16(port))})
	}
	return upstreams, nil
}

// nodeServers returns the name servers that the node uses: those that it uses now or, if they are not known, those that it
// used when the pod was created.
func (f *forwarder) nodeServers() []nameServer {
	if now := f.node.Load(); now != nil {
		return *now
	}
	return f.upstreams
}

var (
	errNoUpstream = errors.New("no upstream name servers")
	errBusy       = errors.New("too many concurrent queries to upstream name servers")
)

// rcodeOf returns the DNS response code with which the server reports an error of exchange to the
// client.
func rcodeOf(err error) int {
	if errors.Is(err, errBusy) {
		return dns.RcodeRefused
	}
	return dns.RcodeServerFailure
}

// exchange returns the answer to a query, from the cache or from an upstream name server. tcp is
// set if the query arrived over TCP.
func (f *forwarder) exchange(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, error) {
	if answer, refresh := f.cache.get(query); answer != nil {
		if refresh {
			query := query.Copy()
			f.refreshing.Go(func() { f.refresh(ctx, query, tcp) })
		}
		return answer, nil
	}
	answer, err := f.forward(ctx, query, tcp)
	if err == nil {
		f.cache.put(query, answer)
	}
	return answer, err
}

// refresh renews the cached answer to a query. After an error the answer expires as usual.
func (f *forwarder) refresh(ctx context.Context, query *dns.Msg, tcp bool) {
	if answer, err := f.forward(ctx, query, tcp); err == nil {
		f.cache.put(query, answer)
	}
}

// forward sends the query to the upstream name servers, starting with a random one, until one answers. It uses
// TCP if the query arrived over TCP or the answer over UDP was truncated. It returns errNoUpstream if there are
// no name servers, errBusy if too many queries are in flight, and the errors of all name servers if none
// answers.
func (f *forwarder) forward(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, error) {
	upstreams := f.nodeServers()
	if len(query.Question) == 1 {
		upstreams = f.custom.Load().servers(query.Question[0].Name, upstreams)
	}
	if len(upstreams) == 0 {
		return nil, errNoUpstream
	}
	defer f.inFlight.Add(-1)
	if n := f.inFlight.Add(1); f.maxInFlight > 0 && n > f.maxInFlight {
		return nil, errBusy
	}
	var errs []error
	first := rand.IntN(len(upstreams))
	for i := range upstreams {
		upstream := upstreams[(first+i)%len(upstreams)]
		answer, err := f.ask(ctx, query, upstream, tcp)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", upstream, err))
	}
	return nil, errors.Join(errs...)
}

// ask sends the query to one name server and returns its answer. A truncated answer over UDP is requested again over TCP, and
// returned as it is if that fails.
func (f *forwarder) ask(ctx context.Context, query *dns.Msg, to nameServer, tcp bool) (*dns.Msg, error) {
	if to.tls {
		return f.tls.Load().exchange(ctx, query, to)
	}
	network := "udp"
	if tcp {
		network = "tcp"
	}
	client := dns.Client{Net: network, Timeout: f.timeout}
	answer, _, err := client.ExchangeContext(ctx, query, to.addr.String())
	if err == nil && answer.Truncated && !tcp {
		client.Net = "tcp"
		if full, _, err := client.ExchangeContext(ctx, query, to.addr.String()); err == nil {
			answer = full
		}
	}
	return answer, err
}
