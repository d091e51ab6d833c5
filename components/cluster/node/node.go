// Package node is the node half of a cluster, the same for up, node, init and join:
// kubelet, proxy and network, the container runtime beside them, and the process or
// unit of systemd that they run in.
package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/kubelet"
	"hyperkube/components/network"
	"hyperkube/components/network/policy"
	"hyperkube/components/proxy"
	"hyperkube/components/proxy/serviceroute"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
)

// Config is what the node half of a cluster needs, wherever it runs.
type Config struct {
	Layout   layout.Node
	Identity identity.Cluster
	// Addresses of the node, one of each family; none: the kubelet finds them.
	Addresses []netip.Addr
	// Kubelet and Proxy are the clients of the two, under their own users.
	Kubelet, Proxy *client.Clients
	// Shared: the clients' informers hold the whole cluster's objects
	// already, in this process; the kubelet uses them instead of its own.
	Shared bool
	// ClusterDNS are the addresses at which pods ask for names; may be empty.
	ClusterDNS []string
	// StaticPods is the folder of the manifests of static pods; may be empty.
	StaticPods string
	// File is a KubeletConfiguration; what it says goes before the rest. Nil:
	// none.
	File *kubeletv1beta1.KubeletConfiguration
	// Providers are those of the kubelet's credentials for images.
	Providers Providers
	// Labels and Taints of the node when it is registered.
	Labels map[string]string
	Taints []corev1.Taint
	// Certificate is the kubelet's serving certificate, nil for one that it
	// signs itself; ClientCA verifies who calls it, nil for nobody.
	Certificate func() (*tls.Certificate, error)
	// Metrics are told with the kubelet's; with ServingKept that certificate is
	// among what they tell of.
	Metrics     []prometheus.Collector
	ServingKept bool
	ClientCA    *x509.CertPool
	// NetworkMode is how nodes reach each other's pods; may be empty.
	NetworkMode network.Mode
	Journal     *hostchange.Journal
	Log         *slog.Logger
}

// Node is kubelet and proxy of one node, and the host's own way to services.
type Node struct {
	cfg     Config
	kubelet *kubelet.Kubelet
	proxy   *proxy.Proxy
	routes  *serviceroute.Keeper
	network *network.Network
	policy  *policy.Enforcer
}

// New composes the node half: it is the same for up, node, init and join.
func New(cfg Config) (*Node, error) {
	kc := kubelet.Config{
		NodeName:   cfg.Identity.NodeName,
		Layout:     cfg.Layout,
		Clients:    cfg.Kubelet,
		Node:       kubelet.NodeConfig{IPs: cfg.Addresses, Labels: cfg.Labels, Taints: cfg.Taints},
		DNS:        kubelet.DNSConfig{Servers: cfg.ClusterDNS, Domain: cfg.Identity.Domain},
		StaticPods: kubelet.StaticPods{Dir: cfg.StaticPods},
		Images:     kubelet.ImageConfig{CredentialProviders: cfg.Providers.Config, CredentialProviderDir: cfg.Providers.Dir},
		Server:     kubelet.ServerConfig{Certificate: cfg.Certificate, CertificateKept: cfg.ServingKept},
		Access:     kubelet.AccessConfig{ClientCA: cfg.ClientCA},
		Metrics:    cfg.Metrics,
		Journal:    cfg.Journal,
		Log:        cfg.Log.With("component", "kubelet"),
	}
	if cfg.Shared {
		core := cfg.Kubelet.Informers.Core().V1()
		kc.Informers.Pods, kc.Informers.Services, kc.Informers.Nodes = shared(core.Pods().Informer()), shared(core.Services().Informer()), shared(core.Nodes().Informer())
	}
	if cfg.File != nil {
		if err := kc.Apply(cfg.File); err != nil {
			return nil, err
		}
	}
	if kc.Eviction.Settings.Hard == nil {
		kc.Eviction.Settings.Hard = evictionHard()
	}
	pc := proxy.Config{
		Clients: cfg.Proxy, NodeName: cfg.Identity.NodeName, LocalhostNodePorts: true,
		HealthzAddress: fmt.Sprintf(":%d", layout.PortProxyHealthz),
		MetricsAddress: fmt.Sprintf("127.0.0.1:%d", layout.PortProxyMetrics),
		Journal:        cfg.Journal,
		Log:            cfg.Log.With("component", "kube-proxy"),
	}
	for _, text := range cfg.Identity.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR: %w", err)
		}
		pc.PodCIDRs = append(pc.PodCIDRs, prefix)
	}
	p, err := proxy.New(pc)
	if err != nil {
		return nil, err
	}
	kc.ServicesReady = p.Ready()
	enforcer, err := policy.New(policy.Config{
		NodeName: cfg.Identity.NodeName, Bridge: cfg.Layout.Bridge(), Informers: cfg.Proxy.Informers, Log: cfg.Log.With("component", "network"),
	})
	if err != nil {
		return nil, err
	}
	kc.Policies = enforcer
	k, err := kubelet.New(kc)
	if err != nil {
		return nil, err
	}
	routes, err := serviceroute.New(serviceroute.Config{
		CIDRs: cfg.Proxy.Informers.Networking().V1().ServiceCIDRs().Informer(), Bridge: cfg.Layout.Bridge(),
		Journal: cfg.Journal, Log: cfg.Log.With("component", "kube-proxy"),
	})
	if err != nil {
		return nil, err
	}
	between, err := network.New(network.Config{
		NodeName: cfg.Identity.NodeName, Nodes: cfg.Proxy.Informers.Core().V1().Nodes().Informer(), Kube: cfg.Kubelet.Kube,
		Bridge: cfg.Layout.Bridge(), Tunnel: cfg.Layout.Tunnel(), Links: []string{localnodes.Bridge(cfg.Layout)},
		PodCIDRs: pc.PodCIDRs, Mode: cfg.NetworkMode, PluginConf: cfg.Layout.CNIConf(), PluginsChanged: k.LookAtRuntime,
		Journal: cfg.Journal, Log: cfg.Log.With("component", "network"),
	})
	if err != nil {
		return nil, err
	}
	return &Node{cfg: cfg, kubelet: k, proxy: p, routes: routes, network: between, policy: enforcer}, nil
}

// evictionHard are the eviction thresholds of whoever says nothing: upstream's,
// but for the disk. A developer's is often nearly full, and 15 % of a large one
// is no shortage.
func evictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "5%", "nodefs.inodesFree": "5%",
		"imagefs.available": "5%", "imagefs.inodesFree": "5%",
	}
}

// RecordCgroupRoot records the cgroup above all of the node's, if it is the
// node that makes it: one that was given is not taken away.
func RecordCgroupRoot(journal *hostchange.Journal, l layout.Node) error {
	name := filepath.Join("/", l.CgroupRoot)
	if name == "/" {
		return nil
	}
	groups, err := cgroup.Open()
	if err != nil {
		return err
	}
	for _, dir := range groups.Dirs(name) {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
	}
	return journal.Record(hostchange.Change{Kind: hostchange.Cgroup, Name: name})
}

func shared(informer cache.SharedIndexInformer) cache.SharedInformer { return informer }

// StopTimeout is as of lifecycle.Patient: its parts end one after the other, and
// the kubelet carries through what it has asked the runtime for.
func (n *Node) StopTimeout() time.Duration { return 2 * time.Minute }

// Run as lifecycle.Component.
func (n *Node) Run(ctx context.Context) error {
	group := &lifecycle.Group{Log: n.cfg.Log}
	background := context.WithoutCancel(ctx)
	group.Start(background, "kube-proxy", n.proxy)
	group.Start(background, "service routes", n.routes)
	group.Start(background, "network", n.network)
	group.Start(background, "network policies", n.policy)
	group.Start(background, "kubelet", n.kubelet)
	select {
	case <-ctx.Done():
		return group.Stop()
	case err := <-group.Failed():
		_ = group.Stop()
		return err
	}
}
