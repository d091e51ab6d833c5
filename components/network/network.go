// Package network implements the node level of the pod network. It routes packets to pods of other
// nodes: by a direct route to nodes on the same subnet, else through a VXLAN tunnel, or through
// WireGuard tunnels, which encrypt them. It also excludes these packets from masquerading. Package podnet connects the pods of this node.
//
// It watches Nodes and the routes of the kernel. In a single-node cluster it does nothing. Its
// routes, tunnels and rules stay after it stops, so that traffic continues.
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/pod/netannotation"
)

// Config configures a Network.
type Config struct {
	// NodeName is the name of the Node object.
	NodeName string
	// Nodes is the informer of Nodes. The caller starts it.
	Nodes cache.SharedIndexInformer
	// Kube must be allowed to patch this node's Node, to publish its addresses in an annotation.
	Kube kubernetes.Interface
	// Bridge is the name of the pods' bridge. Tunnel is the name of the VXLAN link, and WireGuard that
	// of the link with encrypted tunnels. Both are created when needed.
	Bridge, Tunnel, WireGuard string
	// Links are additional links through which other nodes may be reached, besides the link with
	// the node's address. Links may be missing.
	Links []string
	// PodCIDRs of the whole cluster. If empty, the pod CIDRs of the nodes are used.
	PodCIDRs []netip.Prefix
	// Mode defaults to Auto.
	Mode Mode
	// CNIConfDir is the directory of CNI configurations. If it contains a configuration, the CNI
	// plugin is responsible for the routes to pods of other nodes. Empty disables the check.
	CNIConfDir string
	// OnCNIConfChange is called when a file in that directory changes. It may be nil and must not
	// block.
	OnCNIConfChange func()
	// PacketFilter is how rules are written. Empty means packetfilter.IPTables.
	PacketFilter packetfilter.Mode
	// Journal records the changes to the host. Nil records none.
	Journal *hostjournal.Journal
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// Network maintains this node's routes to pods of other nodes.
type Network struct {
	cfg     Config
	synced  cache.DoneChecker
	changed chan struct{} // buffered: holds one element after nodes changed

	// Used only by the goroutine of Run.
	kernel kernel
	// watch is watchHost and apply is kernel.apply, except in tests.
	watch func(ctx context.Context) (<-chan struct{}, error)
	apply func(ctx context.Context, self member, p plan) error
}

// New validates cfg and registers with the informer of Nodes. Run does the rest.
func New(cfg Config) (*Network, error) {
	if cfg.NodeName == "" || cfg.Nodes == nil || cfg.Kube == nil || cfg.Bridge == "" || cfg.Tunnel == "" || cfg.WireGuard == "" {
		return nil, errors.New("network: node name, informer, client and link names are required")
	}
	if err := cfg.Mode.Check(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	n := &Network{
		cfg: cfg, changed: make(chan struct{}, 1),
		kernel: kernel{bridge: cfg.Bridge, tunnel: cfg.Tunnel, wireGuard: newWireGuard(cfg.WireGuard, cfg.Journal), podCIDRs: cfg.PodCIDRs,
			journal: cfg.Journal, writer: newWriter(cfg.PacketFilter, cfg.Journal, cfg.Log)},
	}
	n.watch, n.apply = n.watchHost, n.kernel.apply
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
				return // only the heartbeat changed
			}
			touch(obj)
		},
		DeleteFunc: touch,
	})
	if err != nil {
		return nil, fmt.Errorf("network: adding event handler: %w", err)
	}
	n.synced = registration.HasSyncedChecker()
	return n, nil
}

// retryAfter is the delay before the routes are set up again after a failure. A change of routes or
// nodes triggers an earlier attempt.
const retryAfter = 2 * time.Second

// Run maintains the routes until ctx is canceled. It logs failures and retries, and returns no
// error. The routes stay in place afterwards.
func (n *Network) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", n.synced) {
		return nil
	}
	watching, stop := context.WithCancel(ctx)
	var routes <-chan struct{}
	defer func() {
		stop()
		if routes != nil {
			for range routes { // the channel is closed when the subscription has ended
			}
		}
	}()
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { n.watchCNIConf(watching) })
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
			if !n.kernel.writer.Lost(ctx) {
				continue
			}
			n.cfg.Log.Info("rules of the pod network are missing, changed or unreadable, probably because of another program; connections between pods of different nodes may have failed or may have had a node address as source; writing the rules again now")
		case _, ok := <-routes:
			if !ok {
				// The subscription overflowed and events were lost: sync and subscribe again.
				routes = nil
				retry.Reset(retryAfter)
				continue
			}
		}
		self, peers := n.members()
		if len(peers) > 0 && !guarded {
			guarded = true
			following.Go(func() { n.kernel.writer.Run(watching, suspect) })
		}
		if len(peers) > 0 && routes == nil {
			var err error
			if routes, err = n.watch(watching); err != nil {
				n.cfg.Log.Warn("watching host routes failed; if another program removes routes to pods of other nodes, they are restored only when a node changes, retrying the watch then", "err", err)
			}
		}
		if err := n.sync(ctx, self, peers); err != nil && ctx.Err() == nil {
			n.cfg.Log.Warn("setting up routes to other nodes failed; pods may not reach pods of other nodes, retrying", "retryAfter", retryAfter, "err", err)
			retry.Reset(retryAfter)
		} else if err == nil && n.kernel.wireGuard.active() {
			retry.Reset(time.Until(n.kernel.wireGuard.keys.due()))
		}
	}
}

// members returns the members of the pod network: this node and all other nodes of the cluster.
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

// sync makes the routes correspond to the nodes: if there are other nodes, it publishes the
// addresses and keys of this node, and creates the routes to them. If another CNI plugin is responsible for
// routes, it removes them.
func (n *Network) sync(ctx context.Context, self member, peers []member) error {
	if n.usesCNIPlugin() {
		return n.apply(ctx, self, plan{})
	}
	encrypted := n.cfg.Mode == WireGuard && len(peers) > 0
	if encrypted && (!self.address.IsValid() || len(self.cidrs) == 0) {
		return nil // the address and the pod CIDRs arrive as a change of the Node
	}
	if len(peers) > 0 && self.address.IsValid() {
		subnets, err := subnetsOf(self.address, n.cfg.Links)
		if err != nil {
			return err
		}
		if text := netannotation.FormatAddresses(subnets); text != netannotation.FormatAddresses(self.subnets) {
			if err := n.publish(ctx, netannotation.Addresses, text); err != nil {
				return err
			}
		}
		self.subnets = subnets
	}
	if !encrypted {
		return n.apply(ctx, self, makePlan(self, peers, n.cfg.Mode))
	}
	keys, err := n.kernel.wireGuard.prepare(self)
	if err != nil {
		return err
	}
	if keys != self.keys {
		if err := n.publish(ctx, netannotation.WireGuard, netannotation.FormatWireGuard(keys)); err != nil {
			return err
		}
	}
	return n.apply(ctx, self, makeEncryptedPlan(self, peers, n.cfg.PodCIDRs))
}

// builtinPlugin is the type of this project's CNI plugin in a CNI configuration. Its pods are
// connected like those of the built-in runtime.
const builtinPlugin = `"hyperkube-cni"`

// usesCNIPlugin reports whether a CNI plugin other than this project's connects the pods of this
// node: there are CNI configurations, and the first one by name does not contain builtinPlugin.
func (n *Network) usesCNIPlugin() bool {
	if n.cfg.CNIConfDir == "" {
		return false
	}
	entries, err := os.ReadDir(n.cfg.CNIConfDir) // sorted by name
	if err != nil {
		return false
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			data, err := os.ReadFile(filepath.Join(n.cfg.CNIConfDir, e.Name()))
			return err == nil && !strings.Contains(string(data), builtinPlugin)
		}
	}
	return false
}

// publish sets an annotation of this node's Node.
func (n *Network) publish(ctx context.Context, annotation, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotation: value}}})
	if err != nil {
		return fmt.Errorf("setting annotation %s of the Node: %w", annotation, err)
	}
	if _, err := n.cfg.Kube.CoreV1().Nodes().Patch(ctx, n.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("setting annotation %s of the Node: %w", annotation, err)
	}
	return nil
}
