package loadbalancer

import (
	"sync"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// defaultLeaseSeconds is the duration of a kubelet's Lease that does not contain one.
const defaultLeaseSeconds = 40

// leases tracks the Leases of kubelets, by the time of this process, because the clocks of nodes differ. A kubelet that
// does not renew its Lease for its duration has failed. It is safe for concurrent use.
type leases struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	byNode map[string]observedLease // guarded by mu
}

// observedLease is what was observed of the Lease of a node.
type observedLease struct {
	renewal  time.Time // by the clock of the node
	seen     time.Time // when renewal was observed
	duration time.Duration
}

func newLeases(clock clock.PassiveClock) *leases {
	return &leases{clock: clock, byNode: map[string]observedLease{}}
}

// observe records a Lease. It returns true if the node had no Lease or an expired one, and now has a valid one. Leases
// of other components are ignored.
func (l *leases) observe(lease *coordv1.Lease) (isNew bool) {
	if lease.Namespace != corev1.NamespaceNodeLease || lease.Spec.RenewTime == nil {
		return false
	}
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.byNode[lease.Name]
	if known && before.renewal.Equal(lease.Spec.RenewTime.Time) {
		return false
	}
	l.byNode[lease.Name] = observedLease{
		renewal: lease.Spec.RenewTime.Time, seen: now,
		duration: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, defaultLeaseSeconds)) * time.Second,
	}
	return !known || before.left(now) <= 0
}

// forget discards the Lease of a node.
func (l *leases) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byNode, node)
}

// left returns the time until the Lease of a node expires; zero or negative if it has expired. It returns false if the
// node has no Lease.
func (l *leases) left(node string) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.byNode[node]
	return o.left(l.clock.Now()), ok
}

// left returns the time from now until the Lease expires.
func (o observedLease) left(now time.Time) time.Duration { return o.seen.Add(o.duration).Sub(now) }
