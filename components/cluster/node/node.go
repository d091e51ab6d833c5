// Package node runs the components of a node, which are the same for up, node, init and join: the
// kubelet, kube-proxy and the pod network, the container runtime in a separate process, and the
// process or systemd unit that runs them.
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
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/kubelet"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/components/network"
	"hyperkube/components/network/announce"
	"hyperkube/components/network/policy"
	"hyperkube/components/proxy"
	"hyperkube/components/proxy/serviceroute"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/firewalld"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// Config configures the components of a node.
//
// Size: what the components of a node have in common; settings of a single component are in Settings.
type Config struct {
	Layout  layout.Node
	Cluster clusterconfig.Cluster
	// CloudProvider is External if a cloud controller manager initializes the node.
	CloudProvider cloudprovider.Setting
	// Addresses of the node, at most one of each IP family. If empty, the kubelet detects them.
	Addresses []netip.Addr
	// Kubelet and Proxy are the clients of the kubelet and of kube-proxy, each with its user.
	Kubelet, Proxy *client.Clients
	// SharedInformers is true if the informers of the clients store all objects of the cluster, because the
	// control plane runs in this process. The kubelet then uses them instead of separate ones.
	SharedInformers bool
	// ClusterDNS are the IP addresses of the DNS servers of pods; may be empty.
	ClusterDNS []string
	// StaticPods is the directory of the manifests of static pods; may be empty.
	StaticPods string
	// Settings are settings of the kubelet and of kube-proxy that take precedence over the other fields.
	Settings Settings
	// NoSeccompDefault disables seccompDefault of KubeletConfiguration, which is on otherwise.
	NoSeccompDefault bool
	// CredentialProviders configures the credential providers for image pulls.
	CredentialProviders CredentialProviders
	// Labels and Taints are set when the node is registered.
	Labels map[string]string
	Taints []corev1.Taint
	// Certificate returns the kubelet's serving certificate. If nil, the kubelet signs one itself.
	Certificate func() (*tls.Certificate, error)
	// Metrics are exposed with the kubelet's metrics. CertificateHasMetrics is true if they include those of
	// the serving certificate.
	Metrics               []prometheus.Collector
	CertificateHasMetrics bool
	// ClientCA verifies the client certificates of requests to the kubelet; if nil, none is accepted.
	ClientCA *x509.CertPool
	// NetworkMode is how pod traffic between nodes is sent; empty means the default mode.
	NetworkMode network.Mode
	// PacketFilter is how packet filter rules are written. It must be that of the container runtime.
	PacketFilter packetfilter.Mode
	// Journal records changes of the host.
	Journal *hostjournal.Journal
	Log     *slog.Logger
}

// Settings are settings of the components. Each may be nil.
type Settings struct {
	// Kubelet is a KubeletConfiguration, which is applied to the configuration of this package.
	Kubelet *kubeletv1beta1.KubeletConfiguration
	// KubeletFlags are flags of the kubelet, which take precedence over Kubelet.
	KubeletFlags *kubeletconfig.Overrides
	// Proxy contains a KubeProxyConfiguration and flags of kube-proxy.
	Proxy *proxy.Flags
}

// podPIDsLimit is the maximum number of processes and threads of a pod, unless podPidsLimit of
// KubeletConfiguration specifies another, so that a pod cannot exhaust the process IDs of the machine.
const podPIDsLimit = 4096

// Node runs the kubelet, kube-proxy, the pod network and the host's routes to services.
type Node struct {
	cfg     Config
	kubelet *kubelet.Kubelet
	proxy   *proxy.Proxy
	routes  *serviceroute.Reconciler
	network *network.Network
	policy  *policy.Enforcer
	// addresses announces load balancer addresses.
	addresses *announce.Announcer
	// firewall makes firewalld accept traffic of pods.
	firewall *firewalld.Manager
	// dns copies the resolver configuration of the node for the cluster DNS.
	dns *nodeDNS
}

// diskSize returns the size in bytes of the file system in which path exists or will be created, or 0 if it cannot be
// read.
func diskSize(path string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(preflight.NearestExisting(path), &fs); err != nil {
		return 0
	}
	return int64(fs.Blocks) * fs.Bsize
}

// New creates the components of a node without starting them. It adds their informers to the factories of the clients,
// which the caller starts. Without an evictionHard setting, pods are evicted below 5 % of
// free disk, at most 2 GiB.
func New(cfg Config) (*Node, error) {
	kc := kubeletconfig.Config{
		NodeName:   cfg.Cluster.NodeName,
		Layout:     cfg.Layout,
		Node:       kubeletconfig.Node{IPs: cfg.Addresses, Labels: cfg.Labels, Taints: cfg.Taints, CloudProvider: cfg.CloudProvider},
		DNS:        kubeletconfig.DNS{Servers: cfg.ClusterDNS, Domain: cfg.Cluster.Domain},
		StaticPods: kubeletconfig.StaticPods{Dir: cfg.StaticPods},
		Images:     kubeletconfig.Images{CredentialProviders: cfg.CredentialProviders.Config, CredentialProviderDir: cfg.CredentialProviders.Dir},
		Server:     kubeletconfig.Server{Certificate: cfg.Certificate, CertificateHasMetrics: cfg.CertificateHasMetrics},
		Machine:    kubeletconfig.Machine{StopSocket: podsunit.StopSocket(cfg.Layout)},
		Access:     kubeletconfig.Access{ClientCA: cfg.ClientCA},
		Containers: kubeletconfig.Containers{SeccompDefault: !cfg.NoSeccompDefault, PidsLimit: podPIDsLimit},
	}
	deps := kubelet.Dependencies{Clients: cfg.Kubelet, Metrics: cfg.Metrics, Journal: cfg.Journal, Log: cfg.Log.With("component", "kubelet")}
	if cfg.SharedInformers {
		core := cfg.Kubelet.Informers.Core().V1()
		deps.Informers.Pods, deps.Informers.Services, deps.Informers.Nodes = shared(core.Pods().Informer()), shared(core.Services().Informer()), shared(core.Nodes().Informer())
	}
	if cfg.Settings.Kubelet != nil {
		if err := kc.Apply(cfg.Settings.Kubelet); err != nil {
			return nil, err
		}
	}
	if err := cfg.Settings.KubeletFlags.Apply(&kc); err != nil {
		return nil, err
	}
	if kc.Eviction.Settings.Hard == nil {
		kc.Eviction.Settings.Hard = kubeletconfig.EvictionHardFullDisk(diskSize(cfg.Layout.Kubelet), diskSize(cfg.Layout.Data))
	}
	pc := proxy.Config{
		Clients: cfg.Proxy, NodeName: cfg.Cluster.NodeName, LocalhostNodePorts: true,
		HealthzAddress: fmt.Sprintf(":%d", layout.PortProxyHealthz),
		MetricsAddress: fmt.Sprintf("127.0.0.1:%d", layout.PortProxyMetrics),
		PacketFilter:   cfg.PacketFilter,
		Journal:        cfg.Journal,
		Log:            cfg.Log.With("component", "kube-proxy"),
	}
	for _, text := range cfg.Cluster.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR: %w", err)
		}
		pc.PodCIDRs = append(pc.PodCIDRs, prefix)
	}
	if cfg.Settings.Proxy != nil {
		var err error
		if pc, err = cfg.Settings.Proxy.Apply(pc); err != nil {
			return nil, err
		}
	}
	p, err := proxy.New(pc)
	if err != nil {
		return nil, err
	}
	deps.ServicesReady = p.Ready()
	enforcer, err := policy.New(policy.Config{
		NodeName: cfg.Cluster.NodeName, Bridge: cfg.Layout.Bridge(), Informers: cfg.Proxy.Informers, Metadata: cfg.Proxy.Metadata, Dynamic: cfg.Proxy.Dynamic,
		PacketFilter: cfg.PacketFilter, Log: cfg.Log.With("component", "network"),
	})
	if err != nil {
		return nil, err
	}
	deps.Policies = enforcer
	k, err := kubelet.New(kc, deps)
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
		NodeName: cfg.Cluster.NodeName, Nodes: cfg.Proxy.Informers.Core().V1().Nodes().Informer(), Kube: cfg.Kubelet.Kube,
		Bridge: cfg.Layout.Bridge(), Tunnel: cfg.Layout.Tunnel(), WireGuard: cfg.Layout.WireGuard(), Links: []string{localnodes.Bridge(cfg.Layout)},
		PodCIDRs: pc.PodCIDRs, Mode: cfg.NetworkMode, CNIConfDir: cfg.Layout.CNIConf(), OnCNIConfChange: k.CheckRuntime,
		PacketFilter: cfg.PacketFilter, Journal: cfg.Journal, Log: cfg.Log.With("component", "network"),
	})
	if err != nil {
		return nil, err
	}
	addresses, err := announce.New(announce.Config{
		NodeName: cfg.Cluster.NodeName, Services: cfg.Proxy.Informers.Core().V1().Services().Informer(), Nodes: cfg.Proxy.Informers.Core().V1().Nodes().Informer(),
		Kube: cfg.Kubelet.Kube, Ready: p.Ready(), Ignored: []string{cfg.Layout.Bridge(), cfg.Layout.Tunnel(), cfg.Layout.WireGuard()}, Log: cfg.Log.With("component", "network"),
	})
	if err != nil {
		return nil, err
	}
	firewall := firewalld.New(firewalld.Config{
		Sources: pc.PodCIDRs, Links: []string{cfg.Layout.Bridge(), cfg.Layout.Tunnel(), cfg.Layout.WireGuard(), localnodes.Bridge(cfg.Layout)},
		Journal: cfg.Journal, Log: cfg.Log.With("component", "network"),
	})
	return &Node{
		cfg: cfg, kubelet: k, proxy: p, routes: routes, network: between, policy: enforcer, addresses: addresses, firewall: firewall,
		dns: newNodeDNS(kc.DNS, filepath.Join(cfg.Layout.NodeDNS(), "resolv.conf"), cfg.Log.With("component", "kubelet")),
	}, nil
}

// RecordCgroupRoot records the cgroup root of the node in the journal if the node has to create it, and the controllers
// that are enabled for top-level cgroups, so that `down` reverts both. An existing cgroup is not recorded, so `down`
// does not delete it.
func RecordCgroupRoot(journal *hostjournal.Journal, l layout.Node) error {
	groups, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := hostjournal.RecordControllers(journal, groups); err != nil {
		return err
	}
	name := filepath.Join("/", l.CgroupRoot)
	if name == "/" {
		return nil
	}
	for _, dir := range groups.Dirs(name) {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
	}
	return journal.Record(hostjournal.Change{Kind: hostjournal.Cgroup, Name: name})
}

// shared converts an informer to the smaller interface that the kubelet uses.
func shared(informer cache.SharedIndexInformer) cache.SharedInformer { return informer }

// StopTimeout implements lifecycle.StopTimeouter. The components stop one after another, and the kubelet
// finishes requests to the container runtime.
func (n *Node) StopTimeout() time.Duration { return 2 * time.Minute }

// Run implements lifecycle.Component. It runs the service proxy and routes, the pod network, network
// policies, and the kubelet until ctx is canceled or one of them fails. The container runtime is
// started separately.
func (n *Node) Run(ctx context.Context) error {
	group := &lifecycle.Group{Log: n.cfg.Log}
	background := context.WithoutCancel(ctx)
	group.Start(background, "firewalld", n.firewall)
	group.Start(background, "kube-proxy", n.proxy)
	group.Start(background, "service routes", n.routes)
	group.Start(background, "network", n.network)
	group.Start(background, "network policies", n.policy)
	group.Start(background, "name servers", n.dns)
	group.Start(background, "kubelet", n.kubelet)
	// It stops first, because it hands its addresses over to other nodes.
	group.Start(background, "load balancer addresses", n.addresses)
	select {
	case <-ctx.Done():
		return group.Stop()
	case err := <-group.Failed():
		_ = group.Stop()
		return err
	}
}
