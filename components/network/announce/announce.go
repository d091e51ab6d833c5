// Package announce makes a node answer for the load balancer addresses that the load balancer controller has assigned
// to it: it replies to ARP requests and neighbor solicitations with the hardware address of the node's link, and
// announces the addresses when it gets them. The node's service rules then forward the connections. No link gets the
// addresses.
//
// The annotation netannotation.LoadBalancerNode of a Service names the node that announces the Service's addresses. If
// the process stops, its node requests a successor, and answers until the controller has assigned the addresses to
// that. If a node cannot reach the API server, it does not receive the assignment to another node. So when another
// machine claims an address, the node asks the API server, and stops to answer unless the address is still assigned
// to it.
//
// Without such addresses, the package opens no socket and reads no links.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/pod/netannotation"
)

// Config configures an Announcer. All fields are required, except Ignored and Log.
type Config struct {
	// NodeName is the name of this node.
	NodeName string
	// Services and Nodes are informers, which the caller starts.
	Services, Nodes cache.SharedIndexInformer
	// Kube must be allowed to get Services, and to patch the Node of this node.
	Kube kubernetes.Interface
	// Ready is closed when this node forwards connections to the addresses.
	Ready <-chan struct{}
	// Ignored are the names of links on which nothing is announced, such as the bridge of the pods.
	Ignored []string
	Log     *slog.Logger
}

// Announcer announces load balancer addresses of this node.
type Announcer struct {
	cfg    Config
	synced []cache.DoneChecker
	// changed holds one element if assigned, or the links of the node, may have changed.
	changed chan struct{}

	mu sync.Mutex
	// assigned are the addresses that this node announces, by the namespace/name of the Service; guarded by mu.
	assigned map[string][]netip.Addr
}

// New returns an Announcer and adds its event handlers to the informers.
func New(cfg Config) (*Announcer, error) {
	if cfg.NodeName == "" || cfg.Services == nil || cfg.Nodes == nil || cfg.Kube == nil || cfg.Ready == nil {
		return nil, errors.New("load balancer addresses: node name, informers, client and readiness are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &Announcer{cfg: cfg, changed: make(chan struct{}, 1), assigned: map[string][]netip.Addr{}}
	registration, err := cfg.Services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: a.assign, UpdateFunc: func(_, obj any) { a.assign(obj) }, DeleteFunc: a.unassign,
	})
	if err != nil {
		return nil, fmt.Errorf("load balancer addresses: adding event handler: %w", err)
	}
	a.synced = []cache.DoneChecker{registration.HasSyncedChecker(), cfg.Nodes.HasSyncedChecker()}
	return a, nil
}

// addressesOn returns the addresses of svc that the node announces; none if another node or none does.
func addressesOn(node string, svc *corev1.Service) []netip.Addr {
	if svc.Annotations[netannotation.LoadBalancerNode] != node || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var out []netip.Addr
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(i.IP); err == nil && addr.IsGlobalUnicast() {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

// assign handles an informer event of a new or changed Service.
func (a *Announcer) assign(obj any) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	a.setAssigned(svc.Namespace+"/"+svc.Name, addressesOn(a.cfg.NodeName, svc))
}

// unassign handles an informer event of a deleted Service.
func (a *Announcer) unassign(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		a.setAssigned(key, nil)
	}
}

// setAssigned replaces the assigned addresses of a Service, and notifies Run if they changed.
func (a *Announcer) setAssigned(key string, addresses []netip.Addr) {
	a.mu.Lock()
	same := slices.Equal(a.assigned[key], addresses)
	if len(addresses) == 0 {
		delete(a.assigned, key)
	} else {
		a.assigned[key] = addresses
	}
	a.mu.Unlock()
	if !same {
		a.touch()
	}
}

// touch makes Run check the assigned addresses and the links again. It does not block.
func (a *Announcer) touch() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// services returns the Services of the addresses that this node announces, by address. It omits addresses of Nodes:
// users can set the annotation of a Service, but must not redirect the traffic of a node.
func (a *Announcer) services() map[netip.Addr]string {
	a.mu.Lock()
	assigned := maps.Clone(a.assigned)
	a.mu.Unlock()
	out := map[netip.Addr]string{}
	for key, addresses := range assigned {
		for _, addr := range addresses {
			out[addr] = key
		}
	}
	if len(out) == 0 {
		return out
	}
	for _, obj := range a.cfg.Nodes.GetStore().List() {
		if n, ok := obj.(*corev1.Node); ok {
			for _, addr := range nodeAddresses(n) {
				delete(out, addr)
			}
		}
	}
	return out
}

// nodeAddresses returns the addresses of n.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, one := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(one.Address); err == nil {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

// self returns the Node of this node; nil if the informer does not have it.
func (a *Announcer) self() *corev1.Node {
	obj, exists, err := a.cfg.Nodes.GetStore().GetByKey(a.cfg.NodeName)
	if err != nil || !exists {
		return nil
	}
	n, _ := obj.(*corev1.Node)
	return n
}

const (
	// claimInterval is the interval, and claimCount the number of announcements of a new address, because a packet
	// may be lost.
	claimInterval = time.Second
	claimCount    = 5
	// retryInterval is the interval of attempts after an error.
	retryInterval = 2 * time.Second
)

// Run announces the addresses until ctx is cancelled, and then hands them over to another node, for which it waits for
// at most handoverTimeout. Errors are logged and retried; it always returns nil.
func (a *Announcer) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", a.synced...) {
		return nil
	}
	select {
	case <-a.cfg.Ready:
	case <-ctx.Done():
		return nil
	}
	s := newState(a)
	defer s.close()
	a.touch() // to remove the annotation of an earlier process
	repeat, retry := time.NewTimer(0), time.NewTimer(0)
	defer repeat.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			a.handOver(ctx)
			return nil
		case <-a.changed:
		case addr := <-s.claimed:
			s.verify(ctx, addr)
		case <-s.watchEnded():
		case <-retry.C:
		case <-repeat.C:
			if s.claim() {
				repeat.Reset(claimInterval)
			}
			continue
		}
		if !s.sync(ctx) {
			retry.Reset(retryInterval)
		}
		repeat.Reset(0)
	}
}
