// Package nodeipam allocates a pod CIDR of each IP family to each Node, from the cluster's pod
// CIDRs.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/pager"

	"hyperkube/components/controllers/internal/control"
)

// Config defines the cluster CIDRs from which pod CIDRs are allocated to Nodes, and the ranges in them that are
// reserved.
type Config struct {
	// ClusterCIDRs are one range, or one of each IP family. The first determines Node.spec.podCIDR.
	ClusterCIDRs []netip.Prefix
	// MaskSizeIPv4 and MaskSizeIPv6 are the prefix lengths of a node's CIDRs; zero means 24 and 64.
	MaskSizeIPv4, MaskSizeIPv6 int
	// Reserved are never allocated to nodes: the CIDRs of Services.
	Reserved []netip.Prefix
}

// Controller allocates pod CIDRs to Nodes without them, and releases the CIDRs of deleted Nodes.
type Controller struct {
	*control.Loop
	env   control.Env
	nodes corelisters.NodeLister
	// reserved are never allocated.
	reserved []netip.Prefix

	mu   sync.Mutex // guards the fields below
	sets []*cidrSet
	// allocated are the CIDRs of each Node, by name, including allocations that the cache does not
	// contain yet.
	allocated map[string][]netip.Prefix
	// waiting are the names of Nodes for which no CIDR was left. They are synced again when a CIDR
	// is released.
	waiting map[string]bool
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It returns an error
// if there is no cluster CIDR, more than one of a family, or a mask size that does not fit. The caller then starts the
// informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if n := len(cfg.ClusterCIDRs); n == 0 || n > 2 {
		return nil, fmt.Errorf("allocating node CIDRs requires one or two cluster CIDRs, got %d", n)
	}
	if len(cfg.ClusterCIDRs) == 2 && cfg.ClusterCIDRs[0].Addr().Is4() == cfg.ClusterCIDRs[1].Addr().Is4() {
		return nil, errors.New("two cluster CIDRs must be of different IP families")
	}
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{env: env, nodes: nodes.Lister(), reserved: cfg.Reserved, allocated: map[string][]netip.Prefix{}, waiting: map[string]bool{}}
	for _, p := range cfg.ClusterCIDRs {
		size := cfg.MaskSizeIPv4
		if size == 0 {
			size = 24
		}
		if p.Addr().Is6() {
			if size = cfg.MaskSizeIPv6; size == 0 {
				size = 64
			}
		}
		set, err := newSet(p, size)
		if err != nil {
			return nil, err
		}
		for _, r := range cfg.Reserved {
			set.markUsed(r)
		}
		c.sets = append(c.sets, set)
	}
	c.Loop = control.NewLoop(env, "nodeipam", c.sync)
	c.Prepare(c.markExisting)
	return c, c.Watch(nodes.Informer(), control.AnyEvent(func(n *corev1.Node) { c.Add(n.Name) }))
}

// markExisting marks the CIDRs of existing Nodes as used before the first allocation. It lists them from
// the API server, because the cache may lack the last allocations of the previous leader.
func (c *Controller) markExisting(ctx context.Context) error {
	return pager.New(pager.SimplePageFunc(func(opts metav1.ListOptions) (runtime.Object, error) {
		return c.env.Kube.CoreV1().Nodes().List(ctx, opts)
	})).EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		c.markUsed(obj.(*corev1.Node))
		return nil
	})
}

// markUsed records that the pod CIDRs in the spec of n are allocated to n. It ignores a Node without CIDRs.
func (c *Controller) markUsed(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.markUsedLocked(n)
}

// markUsedLocked does the same as markUsed. The caller must hold mu.
func (c *Controller) markUsedLocked(n *corev1.Node) {
	if len(n.Spec.PodCIDRs) == 0 {
		return
	}
	var held []netip.Prefix
	for _, s := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			c.env.Log.Warn("Node has a pod CIDR that cannot be parsed; the CIDR is ignored and not reserved for the node: recreate the Node", "node", n.Name, "cidr", s, "err", err)
			continue
		}
		held = append(held, p)
	}
	if before, ok := c.allocated[n.Name]; ok && slices.Equal(before, held) {
		return
	}
	// Another client may have set the Node's CIDRs.
	c.releaseLocked(n.Name)
	for _, p := range held {
		for _, set := range c.sets {
			set.markUsed(p)
		}
	}
	c.allocated[n.Name] = held
}

// sync allocates CIDRs to the Node with the name and writes them to its spec. If it has CIDRs, sync records them; if it
// does not exist, sync releases its CIDRs. If no CIDR is left, it emits an event and does not retry until one is
// released.
func (c *Controller) sync(ctx context.Context, name string) error {
	defer c.enqueueWaiting(name)
	n, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		c.release(name)
		return nil
	}
	if err != nil {
		return err
	}
	if len(n.Spec.PodCIDRs) > 0 {
		c.markUsed(n)
		return nil
	}
	if n.DeletionTimestamp != nil {
		return nil
	}
	cidrs, err := c.allocate(name)
	if err != nil {
		c.record(n, "CIDRNotAvailable")
		return fmt.Errorf("failed to allocate cidr from cluster cidr: %w: %w", err, control.ErrNoRetry)
	}
	texts := make([]string, len(cidrs))
	for i, p := range cidrs {
		texts[i] = p.String()
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts}})
	if err != nil {
		return err
	}
	_, err = c.env.Kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		c.release(name)
		return nil
	case apierrors.IsInvalid(err):
		// The Node already has other CIDRs, which the cache does not contain yet.
		if has, wrong := c.adoptExisting(ctx, name); has || wrong != nil {
			return wrong
		}
	}
	// After a timeout the CIDRs may have been written, so keep the allocation. The retry writes the
	// same CIDRs.
	c.record(n, "CIDRAssignmentFailed")
	return fmt.Errorf("assigning pod CIDRs: %w", err)
}

// enqueueWaiting enqueues one of the Nodes that wait for CIDRs, except the Node tried, if a CIDR of each family is
// free. It is called after each sync with the Node of that sync, so that the sync of the enqueued Node enqueues the
// next one.
func (c *Controller) enqueueWaiting(tried string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, set := range c.sets {
		if set.free == 0 {
			return
		}
	}
	for name := range c.waiting {
		if name != tried {
			delete(c.waiting, name)
			c.Add(name)
			return
		}
	}
}

// allocate returns the CIDRs of the Node with the name, one of each set. It allocates them unless the Node already has
// an allocation. If a set has no CIDR left, it returns an error and adds the Node to waiting.
func (c *Controller) allocate(name string) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, name)
	if held := c.allocated[name]; len(held) > 0 {
		return held, nil
	}
	var got []netip.Prefix
	for i, set := range c.sets {
		p, err := set.allocate()
		if err != nil {
			for j := range got {
				c.sets[j].release(got[j])
			}
			c.waiting[name] = true
			return nil, fmt.Errorf("cluster CIDR %s: %w", c.sets[i].cluster, err)
		}
		got = append(got, p)
	}
	c.allocated[name] = got
	return got, nil
}

// adoptExisting replaces the allocation of a Node with the CIDRs that it has in the API, and reports whether it has
// any. It holds mu for both steps, so that no other Node can get one of the CIDRs in between.
func (c *Controller) adoptExisting(ctx context.Context, name string) (bool, error) {
	n, err := c.env.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("getting pod CIDRs of node: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(name)
	c.markUsedLocked(n)
	return len(n.Spec.PodCIDRs) > 0, nil
}

// release releases the CIDRs of the Node with the name, and removes it from waiting. CIDRs that are reserved, or that
// other Nodes also have, remain used.
func (c *Controller) release(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(name)
}

// releaseLocked does the same as release. The caller must hold mu.
func (c *Controller) releaseLocked(name string) {
	delete(c.waiting, name)
	held := c.allocated[name]
	delete(c.allocated, name)
	for _, p := range held {
		for _, set := range c.sets {
			set.release(p)
		}
	}
	// CIDRs that are reserved, or that another Node also has, remain used, because any client can
	// set the CIDRs of a new Node. Part of a released range may also be in use by another Node.
	var freed []netip.Prefix
	for _, p := range held {
		freed = append(freed, p)
		for _, set := range c.sets {
			if part := set.containing(p); part.IsValid() {
				freed = append(freed, part)
			}
		}
	}
	keep := func(others []netip.Prefix) {
		for _, o := range others {
			if !slices.ContainsFunc(freed, o.Overlaps) {
				continue
			}
			for _, set := range c.sets {
				set.markUsed(o)
			}
		}
	}
	keep(c.reserved)
	for _, others := range c.allocated {
		keep(others)
	}
}

// record emits an event on the Node n. status is the reason of the event, such as "CIDRNotAvailable".
func (c *Controller) record(n *corev1.Node, status string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	c.env.Events.Eventf(ref, corev1.EventTypeNormal, status, "Node %s status is now: %s", n.Name, status)
}
