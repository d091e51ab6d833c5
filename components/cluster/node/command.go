package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/kubelet"
	"hyperkube/components/kubelet/certificates"
	"hyperkube/components/network"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/client"
	"hyperkube/internal/hostaddress"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/logs"
)

// Options are the flags of `node`, under the names that kubelet and
// kube-proxy have for them. `init` and `join` keep theirs on disk, for `node`
// without flags.
type Options struct {
	root, cgroupRoot string
	verbose          bool
	// further is the number of a further node that `up` has made; zero: it is
	// none.
	further int

	Kubeconfig          string    `json:"kubeconfig"`
	ProxyKubeconfig     string    `json:"proxyKubeconfig,omitempty"`
	BootstrapKubeconfig string    `json:"bootstrapKubeconfig,omitempty"`
	Rotate              bool      `json:"rotateCertificates,omitempty"`
	RotateServing       bool      `json:"rotateServerCertificates,omitempty"`
	Name                string    `json:"nodeName"`
	IP                  string    `json:"nodeIP,omitempty"`
	Labels              []string  `json:"nodeLabels,omitempty"`
	Providers           Providers `json:"imageCredentialProviders,omitzero"`
	Taints              []string  `json:"registerWithTaints,omitempty"`
	StaticPods          string    `json:"podManifestPath,omitempty"`
	DNS                 []string  `json:"clusterDNS,omitempty"`
	Domain              string    `json:"clusterDomain"`
	ClusterCIDRs        []string  `json:"clusterCIDRs,omitempty"`
	ClientCA            string    `json:"clientCAFile,omitempty"`
	CertFile            string    `json:"tlsCertFile,omitempty"`
	KeyFile             string    `json:"tlsPrivateKeyFile,omitempty"`
	Network             string    `json:"podNetwork,omitempty"`
	Config              string    `json:"config,omitempty"`
	ConfigDir           string    `json:"configDir,omitempty"`
	// EnterWithin is how long the cluster may take to give the first certificate; zero is
	// as long as any wait.
	EnterWithin time.Duration `json:"enterWithin,omitempty"`
}

// NewCommand makes the command `node`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node half alone: runtime, kubelet and proxy",
		Long: "Run the node half of a cluster whose control plane is elsewhere: the container runtime, the kubelet\n" +
			"and the service proxy. It stays in the foreground; when it ends, pods go on, until down.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.command(cmd.Context()) },
	}
	flags := cmd.Flags()
	command.RootFlag(cmd.Flags(), &o.root)
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "Path of the kubelet's kubeconfig, whose user is system:node:NAME.")
	flags.StringVar(&o.ProxyKubeconfig, "proxy-kubeconfig", "", "Path of the proxy's kubeconfig, whose user is system:kube-proxy; empty is the kubelet's.")
	flags.StringVar(&o.BootstrapKubeconfig, "bootstrap-kubeconfig", "", "Path of the kubeconfig with which the kubelet asks for its first certificate; --kubeconfig is then written.")
	flags.BoolVar(&o.Rotate, "rotate-certificates", false, "Renew the kubelet's client certificate before it expires.")
	flags.BoolVar(&o.RotateServing, "rotate-server-certificates", false, "Ask the cluster for the kubelet's serving certificate; somebody must approve that.")
	flags.StringSliceVar(&o.Labels, "node-labels", nil, "Labels of the node when it is registered: key=value.")
	flags.StringSliceVar(&o.Taints, "register-with-taints", nil, "Taints of the node when it is registered: key=value:effect.")
	flags.StringVar(&o.StaticPods, "pod-manifest-path", "", "Directory of the manifests of static pods.")
	flags.StringVar(&o.Name, "node-name", "", "Name of the node; empty is the hostname.")
	flags.StringVar(&o.IP, "node-ip", "", "Address of the node, or one of each family with a comma; 0.0.0.0 and :: are whatever the machine has of the family, empty is what the default route's interface has.")
	flags.StringSliceVar(&o.DNS, "cluster-dns", nil, "Addresses of the cluster's DNS.")
	flags.StringVar(&o.Domain, "cluster-domain", "cluster.local", "The cluster's DNS domain.")
	flags.StringSliceVar(&o.ClusterCIDRs, "cluster-cidr", nil, "Ranges of all pods; traffic to services from elsewhere is masqueraded.")
	flags.StringVar(&o.ClientCA, "client-ca-file", "", "Certificate authority of who calls the kubelet.")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "The kubelet's serving certificate. Without it one is made and signed by itself.")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "Key of --tls-cert-file.")
	flags.StringVar(&o.Network, "pod-network", "", "How nodes reach each other's pods: auto (routes within a subnet, else VXLAN), vxlan or direct.")
	flags.StringVar(&o.Config, "config", "", "Path of a KubeletConfiguration.")
	flags.StringVar(&o.ConfigDir, "config-dir", "", "Directory whose *.conf files change the KubeletConfiguration, in the order of their names.")
	o.Providers.Register(flags)
	flags.StringVar(&o.cgroupRoot, "cgroup-root", "", "Cgroup below which all of the node's cgroups are.")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "Log debug messages, too.")
	flags.IntVar(&o.further, "further", 0, "Run the further node of this number that up --nodes has made on this machine; its network namespace is the caller's.")
	return cmd
}

// command runs the node, and tells whoever started it in the background.
func (o *Options) command(ctx context.Context) error {
	tell, background := progress.ToStarter()
	if !background {
		return o.run(ctx, progress.New(func(progress.Step) {}))
	}
	s := progress.New(tell)
	err := o.run(ctx, s)
	if err != nil {
		s.Fail(err)
	}
	return err
}

// run runs the node until ctx ends.
func (o *Options) run(ctx context.Context, s *progress.Steps) (err error) {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	if o.further > 0 {
		l = l.Numbered(o.further)
	}
	if o.cgroupRoot != "" {
		l.CgroupRoot = o.cgroupRoot
	}
	if o.Kubeconfig == "" {
		if err := o.Load(l); err != nil {
			return command.ConfigError(err)
		}
	}
	lock, err := pidlock.TakeMain(ctx, l)
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := preflight.Check(l, []int{layout.PortKubelet, layout.PortProxyHealthz}); err != nil {
		return err
	}
	journal, err := hostchange.Open(l.Journal("node"))
	if err != nil {
		return err
	}
	defer journal.Close()
	if err := RecordCgroupRoot(journal, l); err != nil {
		return err
	}
	log := o.log()
	logs.Own(log)
	group := &lifecycle.Group{Log: log}
	defer func() { err = errors.Join(err, group.Stop()) }()
	if identity.IsMaster(l) {
		certs.Keeper{Layout: l, Log: log}.Mend(o.Certificates(l))
	}
	client, kept, err := o.enter(ctx, l, group, s)
	if err != nil {
		return err
	}
	cfg, err := o.config(l)
	if err != nil {
		return command.ConfigError(err)
	}
	cfg.Journal, cfg.Metrics = journal, kept
	if err := o.serving(&cfg, group, client); err != nil {
		return err
	}
	if err := StartRuntime(ctx, l, ""); err != nil {
		return err
	}
	group.Start(context.WithoutCancel(ctx), "container runtime", RuntimeKeeper{Layout: l, Log: cfg.Log})
	if identity.IsMaster(l) {
		group.Start(context.WithoutCancel(ctx), "certificates of the control plane", certs.Keeper{Layout: l, Log: cfg.Log})
	}
	n, err := New(cfg)
	if err != nil {
		return err
	}
	return o.serve(ctx, cfg, n, s)
}

// Certificates says where those of this node's kubelet are.
func (o *Options) Certificates(l layout.Node) certificates.Config {
	return certificates.Config{
		NodeName: o.Name, Dir: filepath.Join(l.Kubelet, "pki"), Kubeconfig: o.Kubeconfig, Bootstrap: o.BootstrapKubeconfig,
	}
}

// enter gets the kubelet's client certificate, if it has none, and renews it
// from then on. It returns where the certificates are, and what is told of the
// client's; nil if nobody renews it.
func (o *Options) enter(ctx context.Context, l layout.Node, group *lifecycle.Group, s *progress.Steps) (certificates.Config, []prometheus.Collector, error) {
	var err error
	if o.Name, err = o.ChosenName(); err != nil {
		return certificates.Config{}, nil, err
	}
	cfg := o.Certificates(l)
	if !o.Rotate && o.BootstrapKubeconfig == "" {
		return cfg, nil, nil
	}
	began := time.Now()
	keeper, err := certificates.NewClient(cfg)
	if err != nil {
		return cfg, nil, err
	}
	group.Start(context.WithoutCancel(ctx), "client certificate", keeper)
	what := "the certificate of node " + o.Name
	p := progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord, Bound: cmp.Or(o.EnterWithin, progress.WaitBound),
		Say:    func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Advice: "see `kubectl get csr`",
	}
	err = group.While(ctx, what, func(ctx context.Context) error {
		return p.Wait(ctx, what, o.describeEntry, progress.UntilReady(keeper))
	})
	if err == nil && o.BootstrapKubeconfig != "" { // a master has made its certificate itself
		s.Done(began, "the cluster knows this machine as node %q", o.Name)
	}
	return cfg, []prometheus.Collector{keeper}, err
}

// describeEntry says why there is no first certificate yet, as far as the token tells
// with which it is asked for; "" where that is good.
func (o *Options) describeEntry(ctx context.Context) string {
	if o.BootstrapKubeconfig == "" {
		return ""
	}
	clients, err := client.FromKubeconfig(o.BootstrapKubeconfig, "kubelet")
	if err != nil {
		return err.Error()
	}
	err = clients.Kube.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	switch {
	case apierrors.IsUnauthorized(err):
		return "the cluster does not know the token, which may have expired: join again with what `hyperkube token create --print-join-command` prints on a master"
	case err != nil:
		return err.Error()
	}
	return ""
}

// serving gets the certificate that the kubelet shows from the cluster, if that
// is wanted.
func (o *Options) serving(cfg *Config, group *lifecycle.Group, where certificates.Config) error {
	if !o.RotateServing {
		return nil
	}
	keeper, err := certificates.NewServing(where, func() []string { return append([]string{o.Name}, identity.Texts(cfg.Addresses)...) })
	if err != nil {
		return err
	}
	group.Start(context.Background(), "serving certificate", keeper)
	cfg.Certificate, cfg.ServingKept = keeper.Certificate, true
	cfg.Metrics = append(cfg.Metrics, keeper)
	return nil
}

// Load reads the options that `init` or `join` kept.
func (o *Options) Load(l layout.Node) error {
	data, err := os.ReadFile(identity.NodeFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("--kubeconfig is required on a machine that neither init nor join has set up")
	}
	if err != nil {
		return fmt.Errorf("reading what the node is like: %w", err)
	}
	if err := json.Unmarshal(data, o); err != nil {
		return fmt.Errorf("reading what the node is like: %s: %w", identity.NodeFile(l), err)
	}
	return nil
}

// Save keeps the options.
func (o *Options) Save(l layout.Node) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return fmt.Errorf("keeping what the node is like: %w", err)
	}
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		return fmt.Errorf("keeping what the node is like: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: identity.NodeFile(l), Data: append(data, '\n'), Mode: 0o600}); err != nil {
		return fmt.Errorf("keeping what the node is like: %w", err)
	}
	return nil
}

// serve runs n, and what feeds the proxy, until ctx ends.
func (o *Options) serve(ctx context.Context, cfg Config, n *Node, s *progress.Steps) (err error) {
	group := &lifecycle.Group{Log: cfg.Log}
	defer func() {
		err = errors.Join(err, group.Stop())
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
	}()
	background := context.WithoutCancel(ctx)
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		// Informers that are refused at first wait for seconds before they try
		// again, and nobody reaches services meanwhile.
		if client.AwaitAPI(ctx, cfg.Proxy.Kube, nil) != nil {
			return nil
		}
		cfg.Proxy.Informers.StartWithContext(ctx)
		<-ctx.Done()
		cfg.Proxy.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "node", n)
	p := progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord,
		Say: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
	}
	w := wait{layout: cfg.Layout, name: cfg.Identity.NodeName, kube: cfg.Proxy.Kube}
	if err := group.While(ctx, "the node", func(ctx context.Context) error {
		return p.Wait(ctx, "the node", w.describe, progress.UntilReady(n.kubelet))
	}); err != nil {
		return err
	}
	progress.NotifySystemd("READY=1\nSTATUS=")
	s.Send(progress.Step{Text: fmt.Sprintf("node %q is known to the cluster", cfg.Identity.NodeName), Ready: true})
	cfg.Log.Info("the node is known to the API server", "node", cfg.Identity.NodeName)
	select {
	case <-ctx.Done():
		progress.NotifySystemd("STOPPING=1")
		return nil
	case err := <-group.Failed():
		return err
	}
}

// ChosenName is what was given, or the hostname, if a Node can be called so.
func (o *Options) ChosenName() (string, error) {
	name := o.Name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("asking for the hostname: %w", err)
		}
		name = strings.ToLower(host)
	}
	return name, identity.CheckNodeName(name)
}

// Addresses are those of --node-ip, one of each family at most, of which an unspecified one
// is whatever the machine has; else what it has of the families of the cluster's pods.
func (o *Options) Addresses() ([]netip.Addr, error) {
	if o.IP == "" {
		return identity.NodeAddresses(o.ClusterCIDRs)
	}
	var out []netip.Addr
	for text := range strings.SplitSeq(o.IP, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		if len(out) > 1 || len(out) == 1 && hostaddress.Family(out[0]) == hostaddress.Family(addr) {
			return nil, fmt.Errorf("--node-ip: %s: want at most one address of each family", o.IP)
		}
		if addr, err = hostaddress.Meant(addr.Unmap()); err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		out = append(out, addr)
	}
	return out, nil
}

// ServingNames are what the serving certificate of a node's kubelet is good
// for, besides the node's name.
func ServingNames(addrs []netip.Addr) []string {
	return append(identity.Texts(addrs), "127.0.0.1", "::1", "localhost")
}

func (o *Options) log() *slog.Logger {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// config makes of the flags what New needs. The journal is left.
func (o *Options) config(l layout.Node) (Config, error) {
	cfg := Config{
		Layout:     l,
		Identity:   identity.Cluster{PodCIDRs: o.ClusterCIDRs, Domain: o.Domain},
		ClusterDNS: o.DNS, StaticPods: o.StaticPods, NetworkMode: network.Mode(o.Network),
		Log: o.log(),
	}
	var err error
	if cfg.Identity.NodeName, err = o.ChosenName(); err != nil {
		return cfg, err
	}
	for _, text := range o.Labels {
		key, value, _ := strings.Cut(text, "=")
		if cfg.Labels == nil {
			cfg.Labels = map[string]string{}
		}
		cfg.Labels[key] = value
	}
	if cfg.Taints, err = kubelet.ParseTaints(o.Taints); err != nil {
		return cfg, fmt.Errorf("--register-with-taints: %w", err)
	}
	if cfg.Addresses, err = o.Addresses(); err != nil {
		return cfg, err
	}
	cfg.Providers = o.Providers
	if cfg.File, err = kubelet.LoadFiles(o.Config, o.ConfigDir, nil); err != nil {
		return cfg, err
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return cfg, errors.New("--tls-cert-file and --tls-private-key-file go together")
	}
	if o.CertFile != "" {
		cfg.Certificate = kubelet.CertificateFiles(o.CertFile, o.KeyFile)
		if _, err := cfg.Certificate(); err != nil {
			return cfg, err
		}
	}
	if o.ClientCA != "" {
		if cfg.ClientCA, err = kubelet.ReadPool(o.ClientCA); err != nil {
			return cfg, err
		}
	}
	if cfg.Kubelet, err = ClientsOf("kubeconfig", o.Kubeconfig, "kubelet"); err != nil {
		return cfg, err
	}
	proxy := o.ProxyKubeconfig
	if proxy == "" {
		proxy = o.Kubeconfig
	}
	cfg.Proxy, err = ClientsOf("proxy-kubeconfig", proxy, "kube-proxy")
	return cfg, err
}

// ClientsOf makes the clients of the kubeconfig that a flag names.
func ClientsOf(flag, path, agent string) (*client.Clients, error) {
	if path == "" {
		return nil, fmt.Errorf("--%s is required", flag)
	}
	clients, err := client.FromKubeconfig(path, agent)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return clients, nil
}
