package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// forwarder asks the node's own name servers.
type forwarder struct {
	upstreams []string // host:port
	timeout   time.Duration
	// most bounds how many questions wait for answers, lest name servers that are
	// away take all memory, and names of the cluster with it; zero: nothing does.
	most    int32
	waiting atomic.Int32
	// custom is who is asked instead of upstreams; nil: nobody.
	custom atomic.Pointer[custom]
	// memory answers what was asked of late; it may be nil.
	memory *memory
}

// mostWaiting is as in the usual configuration of CoreDNS.
const mostWaiting = 1000

// newForwarder takes the name servers of a resolv.conf. Those that lead back
// here are left out: loopback (a stub on the node would be this pod's own
// loopback) and the addresses in not.
func newForwarder(resolvConf string, not []netip.Addr) (*forwarder, error) {
	f := &forwarder{timeout: 2 * time.Second, most: mostWaiting, memory: newMemory()}
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("reading the upstream name servers: %w", err)
	}
	for _, server := range config.Servers {
		addr, err := netip.ParseAddr(server)
		if err != nil || addr.IsLoopback() || addr.IsUnspecified() {
			continue
		}
		own := false
		for _, n := range not {
			own = own || n == addr.Unmap()
		}
		if !own {
			f.upstreams = append(f.upstreams, net.JoinHostPort(server, config.Port))
		}
	}
	return f, nil
}

var (
	errNoUpstream = errors.New("no upstream name server is known")
	errBusy       = errors.New("too many questions wait for upstream name servers")
)

// rcodeOf is what a client is told of an error of exchange.
func rcodeOf(err error) int {
	if errors.Is(err, errBusy) {
		return dns.RcodeRefused
	}
	return dns.RcodeServerFailure
}

// exchange answers from memory, or asks the upstreams.
func (f *forwarder) exchange(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, error) {
	if answer := f.memory.answer(query); answer != nil {
		return answer, nil
	}
	answer, err := f.ask(ctx, query, tcp)
	if err == nil {
		f.memory.keep(query, answer)
	}
	return answer, err
}

// ask asks the upstreams, from a random one on, until one answers; over TCP where
// the question came so or the answer was cut short.
func (f *forwarder) ask(ctx context.Context, query *dns.Msg, tcp bool) (*dns.Msg, error) {
	upstreams := f.upstreams
	if len(query.Question) == 1 {
		upstreams = f.custom.Load().servers(query.Question[0].Name, upstreams)
	}
	if len(upstreams) == 0 {
		return nil, errNoUpstream
	}
	defer f.waiting.Add(-1)
	if n := f.waiting.Add(1); f.most > 0 && n > f.most {
		return nil, errBusy
	}
	var errs []error
	first := rand.IntN(len(upstreams))
	for i := range upstreams {
		upstream := upstreams[(first+i)%len(upstreams)]
		network := "udp"
		if tcp {
			network = "tcp"
		}
		client := dns.Client{Net: network, Timeout: f.timeout}
		answer, _, err := client.ExchangeContext(ctx, query, upstream)
		if err == nil && answer.Truncated && !tcp {
			client.Net = "tcp"
			if full, _, err := client.ExchangeContext(ctx, query, upstream); err == nil {
				answer = full
			}
		}
		if err == nil {
			return answer, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", upstream, err))
	}
	return nil, errors.Join(errs...)
}
