package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/kubelet"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
)

// nodeOptions are the flags of `node`, under the names that kubelet and
// kube-proxy have for them.
type nodeOptions struct {
	root, cgroupRoot            string
	kubeconfig, proxyKubeconfig string
	name, ip                    string
	dns, clusterCIDRs           []string
	domain                      string
	clientCA, certFile, keyFile string
	verbose                     bool
}

func newNodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node half alone: runtime, kubelet and proxy",
		Long: "Run the node half of a cluster whose control plane is elsewhere: the container runtime, the kubelet\n" +
			"and the service proxy. It stays in the foreground; when it ends, pods go on, until down.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	rootFlag(cmd, &o.root)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubelet's kubeconfig, whose user is system:node:NAME.")
	flags.StringVar(&o.proxyKubeconfig, "proxy-kubeconfig", "", "Path of the proxy's kubeconfig, whose user is system:kube-proxy.")
	flags.StringVar(&o.name, "node-name", "", "Name of the node; empty is the hostname.")
	flags.StringVar(&o.ip, "node-ip", "", "Address of the node; empty is that of the default route's interface.")
	flags.StringSliceVar(&o.dns, "cluster-dns", nil, "Addresses of the cluster's DNS.")
	flags.StringVar(&o.domain, "cluster-domain", "cluster.local", "The cluster's DNS domain.")
	flags.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "Ranges of all pods; traffic to services from elsewhere is masqueraded.")
	flags.StringVar(&o.clientCA, "client-ca-file", "", "Certificate authority of who calls the kubelet.")
	flags.StringVar(&o.certFile, "tls-cert-file", "", "The kubelet's serving certificate. Without it one is made and signed by itself.")
	flags.StringVar(&o.keyFile, "tls-private-key-file", "", "Key of --tls-cert-file.")
	flags.StringVar(&o.cgroupRoot, "cgroup-root", "", "Cgroup below which all of the node's cgroups are.")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "Log what is only of interest when looking for a mistake.")
	return cmd
}

// run runs the node until ctx ends.
func (o *nodeOptions) run(ctx context.Context) error {
	if err := needRoot(); err != nil {
		return err
	}
	l := layoutFor(o.root)
	if o.cgroupRoot != "" {
		l.CgroupRoot = o.cgroupRoot
	}
	cfg, err := o.config(l)
	if err != nil {
		return codedError{err, ExitConfig}
	}
	lock, err := takeMain(ctx, l)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := preflight(l, []int{l.Port(layout.PortKubelet), l.Port(layout.PortProxyHealthz)}); err != nil {
		return err
	}
	if cfg.Journal, err = hostchange.Open(l.Journal("node")); err != nil {
		return err
	}
	defer cfg.Journal.Close()
	if err := recordCgroupRoot(cfg.Journal, l); err != nil {
		return err
	}
	if err := startRuntime(ctx, l, cfg.Identity); err != nil {
		return err
	}
	n, err := newNode(cfg)
	if err != nil {
		return err
	}
	return o.serve(ctx, cfg, n)
}

// serve runs n, and what feeds the proxy, until ctx ends.
func (o *nodeOptions) serve(ctx context.Context, cfg nodeConfig, n *node) (err error) {
	group := &lifecycle.Group{Log: cfg.Log}
	defer func() {
		err = errors.Join(err, group.Stop())
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
	}()
	background := context.WithoutCancel(ctx)
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		cfg.Proxy.Informers.StartWithContext(ctx)
		<-ctx.Done()
		cfg.Proxy.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "node", n)
	if err := group.WaitReady(ctx, "the node", n.kubelet.Ready()); err != nil {
		return err
	}
	notifySystemd("READY=1")
	cfg.Log.Info("the node is known to the API server", "node", cfg.Identity.NodeName)
	select {
	case <-ctx.Done():
		notifySystemd("STOPPING=1")
		return nil
	case err := <-group.Failed():
		return err
	}
}

// config makes of the flags what newNode needs. The journal is left.
func (o *nodeOptions) config(l layout.Node) (nodeConfig, error) {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	cfg := nodeConfig{
		Layout:     l,
		Identity:   identity{NodeName: o.name, PodCIDRs: o.clusterCIDRs, Domain: o.domain},
		ClusterDNS: o.dns,
		Log:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	if cfg.Identity.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("asking for the hostname: %w", err)
		}
		cfg.Identity.NodeName = strings.ToLower(name)
	}
	var err error
	if o.ip != "" {
		if cfg.Address, err = netip.ParseAddr(o.ip); err != nil {
			return cfg, fmt.Errorf("--node-ip: %w", err)
		}
	}
	if (o.certFile == "") != (o.keyFile == "") {
		return cfg, errors.New("--tls-cert-file and --tls-private-key-file go together")
	}
	if o.certFile != "" {
		cfg.Certificate = kubelet.CertificateFiles(o.certFile, o.keyFile)
		if _, err := cfg.Certificate(); err != nil {
			return cfg, err
		}
	}
	if o.clientCA != "" {
		if cfg.ClientCA, err = kubelet.ReadPool(o.clientCA); err != nil {
			return cfg, err
		}
	}
	if cfg.Kubelet, err = clientsOf("kubeconfig", o.kubeconfig, "kubelet"); err != nil {
		return cfg, err
	}
	cfg.Proxy, err = clientsOf("proxy-kubeconfig", o.proxyKubeconfig, "kube-proxy")
	return cfg, err
}

// clientsOf makes the clients of the kubeconfig that a flag names.
func clientsOf(flag, path, agent string) (*client.Clients, error) {
	if path == "" {
		return nil, fmt.Errorf("--%s is required", flag)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	rest.UserAgent = agent
	return client.New(client.Config{REST: rest})
}
