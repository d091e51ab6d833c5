// Package nodeipam gives each Node its part of the cluster's pod CIDRs, one of
// each IP family.
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

// Config says what there is to give.
type Config struct {
	// ClusterCIDRs are one, or one of each IP family; the first is that of
	// Node.spec.podCIDR.
	ClusterCIDRs []netip.Prefix
	// MaskSizeIPv4 and MaskSizeIPv6 are the prefix lengths of a node's part;
	// zero means 24 and 64.
	MaskSizeIPv4, MaskSizeIPv6 int
	// Reserved are never given away: the CIDRs of Services.
	Reserved []netip.Prefix
}

// Controller gives CIDRs to Nodes. Make it with New.
type Controller struct {
	*control.Loop
	env   control.Env
	nodes corelisters.NodeLister
	// reserved are never given away.
	reserved []netip.Prefix

	mu   sync.Mutex // guards the rest
	sets []*cidrSet
	// held are the CIDRs of each Node, by its name, also before the cache
	// shows them.
	held map[string][]netip.Prefix
	// waiting are the names of Nodes for which there was no CIDR left. Trying again
	// helps once another gives its own back, and not before.
	waiting map[string]bool
}

// New makes the controller.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if n := len(cfg.ClusterCIDRs); n == 0 || n > 2 {
		return nil, fmt.Errorf("one or two cluster CIDRs are needed to allocate node CIDRs, not %d", n)
	}
	if len(cfg.ClusterCIDRs) == 2 && cfg.ClusterCIDRs[0].Addr().Is4() == cfg.ClusterCIDRs[1].Addr().Is4() {
		return nil, errors.New("two cluster CIDRs must be of different IP families")
	}
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{env: env, nodes: nodes.Lister(), reserved: cfg.Reserved, held: map[string][]netip.Prefix{}, waiting: map[string]bool{}}
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
			set.take(r)
		}
		c.sets = append(c.sets, set)
	}
	c.Loop = control.NewLoop(env, "nodeipam", c.sync)
	c.Prepare(c.learn)
	return c, c.Watch(nodes.Informer(), control.Every(func(n *corev1.Node) { c.Add(n.Name) }))
}

// learn notes what Nodes have, which must be known before the first new one gets
// any. The cache may not show yet what the leader before has written last.
func (c *Controller) learn(ctx context.Context) error {
	return pager.New(pager.SimplePageFunc(func(opts metav1.ListOptions) (runtime.Object, error) {
		return c.env.Kube.CoreV1().Nodes().List(ctx, opts)
	})).EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		c.note(obj.(*corev1.Node))
		return nil
	})
}

// note marks what a Node has as used.
func (c *Controller) note(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked(n)
}

func (c *Controller) noteLocked(n *corev1.Node) {
	if len(n.Spec.PodCIDRs) == 0 {
		return
	}
	var held []netip.Prefix
	for _, s := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			c.env.Log.Warn("node has a pod CIDR that cannot be read", "node", n.Name, "cidr", s, "error", err)
			continue
		}
		held = append(held, p)
	}
	if before, ok := c.held[n.Name]; ok && slices.Equal(before, held) {
		return
	}
	// Another may have given it what it has.
	c.releaseLocked(n.Name)
	for _, p := range held {
		for _, set := range c.sets {
			set.take(p)
		}
	}
	c.held[n.Name] = held
}

func (c *Controller) sync(ctx context.Context, name string) error {
	defer c.wake(name)
	n, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		c.release(name)
		return nil
	}
	if err != nil {
		return err
	}
	if len(n.Spec.PodCIDRs) > 0 {
		c.note(n)
		return nil
	}
	if n.DeletionTimestamp != nil {
		return nil
	}
	cidrs, err := c.allocate(name)
	if err != nil {
		c.record(n, "CIDRNotAvailable")
		return fmt.Errorf("failed to allocate cidr from cluster cidr: %w: %w", err, control.ErrWaits)
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
		// It has others already, as the cache will show.
		if has, wrong := c.correct(ctx, name); has || wrong != nil {
			return wrong
		}
	}
	// After a timeout it may have been written nevertheless: it stays held,
	// and the next try writes the same.
	c.record(n, "CIDRAssignmentFailed")
	return fmt.Errorf("assigning pod CIDRs: %w", err)
}

// wake has one of the Nodes that wait tried again, other than the one that was tried
// just now, if there is anything for it. The one wakes the next.
func (c *Controller) wake(tried string) {
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

// allocate returns what the Node of that name holds, taking it first if that is
// nothing. The Node waits where nothing is left.
func (c *Controller) allocate(name string) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, name)
	if held := c.held[name]; len(held) > 0 {
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
	c.held[name] = got
	return got, nil
}

// correct takes what a Node has instead of what it was to have, and tells whether
// it has any. There is no moment in which another could be given either.
func (c *Controller) correct(ctx context.Context, name string) (bool, error) {
	n, err := c.env.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("looking at the pod CIDRs of the node: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(name)
	c.noteLocked(n)
	return len(n.Spec.PodCIDRs) > 0, nil
}

func (c *Controller) release(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(name)
}

func (c *Controller) releaseLocked(name string) {
	delete(c.waiting, name)
	held := c.held[name]
	delete(c.held, name)
	for _, p := range held {
		for _, set := range c.sets {
			set.release(p)
		}
	}
	// What is reserved, or another Node's too, stays taken: anyone may write into a new
	// Node what it has. Of a part that is free now another may hold a piece.
	var freed []netip.Prefix
	for _, p := range held {
		freed = append(freed, p)
		for _, set := range c.sets {
			if part := set.around(p); part.IsValid() {
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
				set.take(o)
			}
		}
	}
	keep(c.reserved)
	for _, others := range c.held {
		keep(others)
	}
}

func (c *Controller) record(n *corev1.Node, status string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	c.env.Events.Eventf(ref, corev1.EventTypeNormal, status, "Node %s status is now: %s", n.Name, status)
}
