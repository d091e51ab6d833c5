// Package network is the node level of the pod network: it leads packets to the
// pods of other nodes, by a route to a node of the same subnet, else through a
// VXLAN tunnel, and keeps their addresses from being masqueraded on the way. The
// pods of the node itself are connected by internal/podnet.
//
// It follows the Nodes and the kernel's routes; while there is one node it does
// nothing. What it made stays when it ends, so that traffic goes on.
//
// https://kubernetes.io/docs/concepts/cluster-administration/networking/
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
)

// Config of a Network.
type Config struct {
	// NodeName is the node's name in the API.
	NodeName string
	// Nodes is the informer of Nodes, started by who composes the process.
	Nodes cache.SharedIndexInformer
	// Kube may patch the node's own Node, which tells others how it is
	// reached.
	Kube kubernetes.Interface
	// Bridge is the name of the pods' bridge, Tunnel that of the link that is
	// made when a tunnel is needed.
	Bridge, Tunnel string
	// Links, besides that of the node's address, are those on which there
	// may be other nodes; such a link may be missing.
	Links []string
	// PodCIDRs of the whole cluster; empty: those of the nodes are used.
	PodCIDRs []netip.Prefix
	// Mode is Auto when empty.
	Mode Mode
	// PluginConf is the folder of configurations of network plugins; while there
	// is one, the ways to other nodes' pods are theirs. Empty: not looked at.
	PluginConf string
	// PluginsChanged is called when something in that folder has changed; may be
	// nil. It must not block.
	PluginsChanged func()
	// Journal records the changes to the host; nil records none.
	Journal *hostchange.Journal
	// Log receives warnings; nil means slog's default.
	Log *slog.Logger
}

// Network keeps the ways to other nodes' pods.
type Network struct {
	cfg     Config
	synced  cache.DoneChecker
	changed chan struct{} // has one element when nodes changed

	// Owned by the goroutine of Run.
	kernel kernel
	// watch is watchRoutes, and apply the kernel's, but in tests.
	watch func(ctx context.Context) (<-chan struct{}, error)
	apply func(ctx context.Context, self member, p plan) error
}

// New validates cfg and asks its informer for what is needed.
func New(cfg Config) (*Network, error) {
	if cfg.NodeName == "" || cfg.Nodes == nil || cfg.Kube == nil || cfg.Bridge == "" || cfg.Tunnel == "" {
		return nil, errors.New("network: a node name, an informer, a client and the names of links are needed")
	}
	if err := cfg.Mode.Validate(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	n := &Network{
		cfg: cfg, changed: make(chan struct{}, 1),
		kernel: kernel{bridge: cfg.Bridge, tunnel: cfg.Tunnel, podCIDRs: cfg.PodCIDRs, journal: cfg.Journal,
			guard: iptables.NewGuard(0, cfg.Log, chainNoMasq, chainMSS)},
	}
	n.watch, n.apply = n.watchRoutes, n.kernel.apply
	touch := func(any) {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
	registration, err := cfg.Nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: touch,
		UpdateFunc: func(old, obj any) {
			before, ok1 := old.(*corev1.Node)
			after, ok2 := obj.(*corev1.Node)
			if ok1 && ok2 && memberOf(before).equal(memberOf(after)) {
				return // it is alive, that is all
			}
			touch(obj)
		},
		DeleteFunc: touch,
	})
	if err != nil {
		return nil, fmt.Errorf("network: preparing informers: %w", err)
	}
	n.synced = registration.HasSyncedChecker()
	return n, nil
}

// retryAfter is how long after a failure the next attempt is; a change of the
// kernel's routes or the nodes brings it sooner.
const retryAfter = 2 * time.Second

// Run keeps the routes until ctx ends.
func (n *Network) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", n.synced) {
		return nil
	}
	watching, stop := context.WithCancel(ctx)
	var routes <-chan struct{}
	defer func() {
		stop()
		if routes != nil {
			for range routes { // it ends when the subscription has
			}
		}
	}()
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { n.followPlugins(watching) })
	suspect := make(chan struct{}, 1)
	guarded := false
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		case <-retry.C:
		case <-suspect:
			if !n.kernel.lost(ctx) {
				continue
			}
			n.cfg.Log.Info("somebody removed rules of the ways to other nodes: all are written again")
		case _, ok := <-routes:
			if !ok {
				// Too much came at once, and some of it was missed: it is looked
				// at, and watched, anew.
				routes = nil
				retry.Reset(retryAfter)
				continue
			}
		}
		self, peers := n.members()
		if len(peers) > 0 && !guarded {
			guarded = true
			following.Go(func() { n.kernel.guard.Run(watching, suspect) })
		}
		if len(peers) > 0 && routes == nil {
			var err error
			if routes, err = n.watch(watching); err != nil {
				n.cfg.Log.Warn("changes of the host's routes are not seen", "err", err)
			}
		}
		if err := n.sync(ctx, self, peers); err != nil && ctx.Err() == nil {
			n.cfg.Log.Warn("pods of other nodes may not be reached, trying again", "err", err)
			retry.Reset(retryAfter)
		}
	}
}

// members returns this node and all others.
func (n *Network) members() (self member, peers []member) {
	for _, obj := range n.cfg.Nodes.GetStore().List() {
		node, ok := obj.(*corev1.Node)
		if !ok {
			continue
		}
		if node.Name == n.cfg.NodeName {
			self = memberOf(node)
		} else {
			peers = append(peers, memberOf(node))
		}
	}
	return self, peers
}

// sync tells how this node is reached, if others want to know, and makes the
// ways to them.
func (n *Network) sync(ctx context.Context, self member, peers []member) error {
	if n.plugins() {
		return n.apply(ctx, self, plan{})
	}
	if len(peers) > 0 && self.address.IsValid() {
		subnets, err := subnetsOf(self.address, n.cfg.Links)
		if err != nil {
			return err
		}
		if text := formatSubnets(subnets); text != formatSubnets(self.subnets) {
			if err := n.tell(ctx, text); err != nil {
				return err
			}
		}
		self.subnets = subnets
	}
	return n.apply(ctx, self, makePlan(self, peers, n.cfg.Mode))
}

// ownPlugin is this project's pod network as a plugin: its pods are like those
// of the built-in runtime.
const ownPlugin = `"hyperkube-cni"`

// plugins tells whether pods are connected by plugins of others: those of the
// first configuration by name.
func (n *Network) plugins() bool {
	if n.cfg.PluginConf == "" {
		return false
	}
	entries, err := os.ReadDir(n.cfg.PluginConf) // in order
	if err != nil {
		return false
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			data, err := os.ReadFile(filepath.Join(n.cfg.PluginConf, e.Name()))
			return err == nil && !strings.Contains(string(data), ownPlugin)
		}
	}
	return false
}

func (n *Network) tell(ctx context.Context, subnets string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationAddresses: subnets}}})
	if err != nil {
		return fmt.Errorf("telling how the node is reached: %w", err)
	}
	if _, err := n.cfg.Kube.CoreV1().Nodes().Patch(ctx, n.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("telling how the node is reached: %w", err)
	}
	return nil
}

// watchRoutes yields an element when routes of this package may be missing: one
// went, or a link got an address. It is closed when ctx ends, or when the kernel has
// more to tell than is read.
func (n *Network) watchRoutes(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx) // which closes the socket
	updates := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{
		ErrorCallback: func(err error) {
			if ctx.Err() == nil {
				n.cfg.Log.Warn("a change of the host's routes was missed", "err", err)
			}
		},
	}); err != nil {
		cancel()
		return nil, err
	}
	out := make(chan struct{}, 1)
	go func() {
		defer cancel()
		defer close(out)
		for u := range updates {
			gone := u.Type == unix.RTM_DELROUTE && u.Protocol == routeProtocol
			came := u.Type == unix.RTM_NEWROUTE && u.Protocol == unix.RTPROT_KERNEL
			if !gone && !came {
				continue
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, nil
}
