package announce

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// state is what Run has set up. Its methods are called by the goroutine of Run only.
type state struct {
	*Announcer
	responders map[int]*responder // by index of the link
	// unclaimed is how often the address of a key is still to be announced on its link.
	unclaimed map[placement]int
	// claimed receives the addresses that another machine claims to have.
	claimed chan netip.Addr
	// verified is when the assignment of a claimed address was last verified.
	verified map[netip.Addr]time.Time
	// yielded are the addresses that another machine claims, and that are probably no longer assigned to this node.
	yielded map[netip.Addr]bool

	watch *linkWatch // nil until this node has an address
	// watched are the indexes of the links that have addresses, for the goroutine of watch.
	watched atomic.Pointer[map[int]bool]
}

// placement is an address on the link with an index.
type placement struct {
	link    int
	address netip.Addr
}

func newState(a *Announcer) *state {
	return &state{
		Announcer: a, responders: map[int]*responder{}, unclaimed: map[placement]int{}, claimed: make(chan netip.Addr, 16),
		verified: map[netip.Addr]time.Time{}, yielded: map[netip.Addr]bool{},
	}
}

// close closes all sockets and stops the watch of links.
func (s *state) close() {
	for _, r := range s.responders {
		r.close()
	}
	s.closeWatch()
}

// sync makes the responders correspond to the assigned addresses and the links. It returns false if it must be repeated
// after retryInterval.
func (s *state) sync(ctx context.Context) (done bool) {
	done = s.removeStopping(ctx)
	services := s.services()
	if len(services) == 0 {
		s.apply(nil, nil)
		s.closeWatch()
		return done
	}
	if err := s.ensureWatch(); err != nil {
		s.cfg.Log.Warn("watching links failed; load balancer addresses are not announced on links that change until a retry succeeds, retrying", "retryAfter", retryInterval, "err", err)
		done = false
	}
	maps.DeleteFunc(s.yielded, func(a netip.Addr, _ bool) bool { return services[a] == "" })
	for a := range s.yielded {
		if !s.isAssigned(ctx, a, services[a]) {
			delete(services, a)
			done = false
			continue
		}
		delete(s.yielded, a)
	}
	links, err := readLinks(s.cfg.Ignored)
	if err != nil {
		s.cfg.Log.Warn("reading links failed; load balancer addresses that are new on this node are not reachable until a retry succeeds, retrying", "retryAfter", retryInterval, "err", err)
		return false
	}
	var node []netip.Addr
	if n := s.self(); n != nil {
		node = nodeAddresses(n)
	}
	addresses := slices.SortedFunc(maps.Keys(services), netip.Addr.Compare)
	return s.apply(links, place(addresses, links, node)) && done
}

// apply opens and closes responders, and schedules the announcements of new addresses. placed are the addresses of each
// link. It returns false if a responder does not answer for all of its addresses.
func (s *state) apply(links []link, placed map[int][]netip.Addr) (done bool) {
	for index, r := range s.responders {
		if i := slices.IndexFunc(links, r.link.equal); i < 0 || !links[i].running || len(placed[index]) == 0 {
			r.close()
			delete(s.responders, index)
		}
	}
	done = true
	used, watched := map[int]bool{}, map[int]bool{}
	for _, l := range links {
		watched[l.index] = true
		addresses := placed[l.index]
		if len(addresses) == 0 || !l.running {
			continue
		}
		used[l.index] = true
		r, before := s.responders[l.index], []netip.Addr(nil)
		if r == nil {
			r = newResponder(l, s.claimed)
			s.responders[l.index] = r
		} else {
			before = r.addresses
		}
		if err := r.set(addresses); err != nil {
			s.cfg.Log.Warn("answering for load balancer addresses failed; other machines may not reach them until a retry succeeds, retrying", "addresses", addresses, "retryAfter", retryInterval, "err", err)
			done = false
		}
		for _, a := range addresses {
			if !slices.Contains(before, a) {
				s.unclaimed[placement{l.index, a}] = claimCount
			}
		}
	}
	s.watched.Store(&watched)
	maps.DeleteFunc(s.unclaimed, func(p placement, _ int) bool { return !slices.Contains(placed[p.link], p.address) || !used[p.link] })
	return done
}

// claim announces the addresses that are new on a link. It returns true if it must be called again after claimInterval.
func (s *state) claim() (again bool) {
	for p, n := range s.unclaimed {
		if err := s.responders[p.link].claim(p.address); err != nil {
			s.cfg.Log.Debug("announcing load balancer address failed; machines that used another node for it do not reach it until a retry succeeds, retrying", "address", p.address, "retryAfter", claimInterval, "err", err)
		}
		if s.unclaimed[p] = n - 1; n == 1 {
			delete(s.unclaimed, p)
		}
	}
	return len(s.unclaimed) > 0
}

// verify handles the claim of another machine to have the address a. If a is still assigned to this node, the node
// announces it again. Otherwise, or if the API server cannot be asked, it stops to answer.
func (s *state) verify(ctx context.Context, a netip.Addr) {
	service := s.services()[a]
	if service == "" || s.yielded[a] || time.Since(s.verified[a]) < claimInterval {
		return
	}
	s.verified[a] = time.Now()
	if !s.isAssigned(ctx, a, service) {
		s.cfg.Log.Info("another machine claims a load balancer address, and the API server does not confirm that the address is assigned to this node; this node stops to answer for it, checking again periodically", "address", a, "service", service, "interval", retryInterval)
		s.yielded[a] = true
		return
	}
	s.cfg.Log.Warn("another machine claims a load balancer address that is assigned to this node; clients may reach that machine instead of the Service: remove the address from the machine, or from the pool", "address", a, "service", service)
	for index := range s.responders {
		if p := (placement{index, a}); s.responders[index].has(a) {
			s.unclaimed[p] = max(s.unclaimed[p], 1)
		}
	}
}

// requestTimeout is the timeout of requests to the API server.
const requestTimeout = 3 * time.Second

// isAssigned asks the API server whether the address a of a Service is assigned to this node. It returns false if the
// API server does not answer.
func (s *state) isAssigned(ctx context.Context, a netip.Addr, service string) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	namespace, name, _ := strings.Cut(service, "/")
	svc, err := s.cfg.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	return err == nil && slices.Contains(addressesOn(s.cfg.NodeName, svc), a)
}

// ensureWatch starts the watch of links unless it is active.
func (s *state) ensureWatch() error {
	if s.watch != nil && s.watch.hasEnded() {
		s.closeWatch()
	}
	if s.watch != nil {
		return nil
	}
	var err error
	s.watch, err = watchLinks(func(index int) bool {
		watched := s.watched.Load()
		return watched == nil || (*watched)[index]
	}, s.touch)
	return err
}

// closeWatch stops the watch of links, if there is one.
func (s *state) closeWatch() {
	if s.watch != nil {
		s.watch.close()
		s.watch = nil
	}
}

// watchEnded returns a channel that is closed when the watch of links must be started again. It is nil if there is none.
func (s *state) watchEnded() <-chan struct{} {
	if s.watch == nil {
		return nil
	}
	return s.watch.ended
}
