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

	"hyperkube/components/cluster/certrenewal"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/watchdog"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/node/kubeletcerts"
	"hyperkube/components/network"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/hostaddress"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/logfile"
	"hyperkube/internal/host/packetfilter"
)

// Options are the flags of `node`, under the names that the kubelet and kube-proxy use. `init`, `join` and `up --nodes`
// save them to disk; `node` without --kubeconfig reads them from there.
//
// Size: one field for each flag, and for each setting of the file format.
type Options struct {
	root, cgroupRoot string
	verbose          bool
	// additional is the number of an additional node created by `up --nodes`; 0 for other nodes.
	additional int

	Kubeconfig          string                `json:"kubeconfig"`
	ProxyKubeconfig     string                `json:"proxyKubeconfig,omitempty"`
	BootstrapKubeconfig string                `json:"bootstrapKubeconfig,omitempty"`
	Rotate              bool                  `json:"rotateCertificates,omitempty"`
	RotateServing       bool                  `json:"rotateServerCertificates,omitempty"`
	Name                string                `json:"nodeName"`
	IP                  string                `json:"nodeIP,omitempty"`
	Labels              []string              `json:"nodeLabels,omitempty"`
	CredentialProviders CredentialProviders   `json:"imageCredentialProviders,omitzero"`
	Taints              []string              `json:"registerWithTaints,omitempty"`
	StaticPods          string                `json:"podManifestPath,omitempty"`
	DNS                 []string              `json:"clusterDNS,omitempty"`
	Domain              string                `json:"clusterDomain"`
	ClusterCIDRs        []string              `json:"clusterCIDRs,omitempty"`
	ClientCA            string                `json:"clientCAFile,omitempty"`
	CertFile            string                `json:"tlsCertFile,omitempty"`
	KeyFile             string                `json:"tlsPrivateKeyFile,omitempty"`
	Network             string                `json:"podNetwork,omitempty"`
	ProxyMode           packetfilter.Mode     `json:"proxyMode,omitempty"`
	CloudProvider       cloudprovider.Setting `json:"cloudProvider,omitempty"`
	Config              string                `json:"config,omitempty"`
	ConfigDir           string                `json:"configDir,omitempty"`
	// NoSeccompDefault is the inverse of --seccomp-default, so that seccompDefault is on after an
	// upgrade from a version without the flag.
	NoSeccompDefault bool `json:"noSeccompDefault,omitempty"`
	// BootstrapTimeout is how long to wait for the first client certificate of the kubelet; 0 means
	// progress.DefaultTimeout.
	BootstrapTimeout time.Duration `json:"enterWithin,omitempty"`
}

// NewCommand returns the command `node`, which runs the kubelet, kube-proxy and the container runtime of a node whose
// control plane runs elsewhere.
func NewCommand() *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run only the node components: container runtime, kubelet and kube-proxy",
		Long: "Run the node components of a cluster whose control plane runs on other machines: the container runtime,\n" +
			"the kubelet and kube-proxy. The command stays in the foreground. When it exits, pods keep running until down.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.runWithProgress(cmd.Context()) },
	}
	flags := cmd.Flags()
	command.RootFlag(cmd.Flags(), &o.root)
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "Path to the kubelet's kubeconfig file, with the user system:node:NAME.")
	flags.StringVar(&o.ProxyKubeconfig, "proxy-kubeconfig", "", "Path to the kubeconfig file of kube-proxy, with the user system:kube-proxy. If empty, the kubelet's is used.")
	flags.StringVar(&o.BootstrapKubeconfig, "bootstrap-kubeconfig", "", "Path to a kubeconfig file with which the kubelet requests its first client certificate. The result is written to --kubeconfig.")
	flags.BoolVar(&o.Rotate, "rotate-certificates", false, "Renew the kubelet's client certificate before it expires.")
	flags.BoolVar(&o.RotateServing, "rotate-server-certificates", false, "Request the kubelet's serving certificate from the cluster and renew it. The certificate signing requests must be approved.")
	flags.StringSliceVar(&o.Labels, "node-labels", nil, "Labels to add when registering the node: key=value.")
	flags.StringSliceVar(&o.Taints, "register-with-taints", nil, "Taints to add when registering the node: key=value:effect.")
	flags.StringVar(&o.StaticPods, "pod-manifest-path", "", "Path to the directory containing the manifests of static pods.")
	flags.StringVar(&o.Name, "node-name", "", "Name of the node. Defaults to the hostname.")
	flags.StringVar(&o.IP, "node-ip", "", "IP address of the node, or a comma-separated dual-stack pair. 0.0.0.0 and :: stand for the machine's address of that family. Defaults to the addresses of the interface with the default route.")
	flags.StringSliceVar(&o.DNS, "cluster-dns", nil, "IP addresses of the cluster DNS service.")
	flags.StringVar(&o.Domain, "cluster-domain", "cluster.local", "DNS domain of the cluster.")
	flags.StringSliceVar(&o.ClusterCIDRs, "cluster-cidr", nil, "CIDRs of all pods in the cluster. Traffic to services from other sources is masqueraded.")
	flags.StringVar(&o.ClientCA, "client-ca-file", "", "Path to the CA certificate that verifies client certificates of requests to the kubelet.")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "Path to the kubelet's serving certificate. If empty, a self-signed certificate is generated.")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "Path to the private key of --tls-cert-file.")
	flags.StringVar(&o.Network, "pod-network", "", "How pod traffic between nodes is sent: auto (routes within a subnet, otherwise VXLAN), vxlan, direct or wireguard (encrypted; the same for all nodes).")
	flags.StringVar(&o.Config, "config", "", "Path to a KubeletConfiguration file.")
	flags.StringVar(&o.ConfigDir, "config-dir", "", "Path to a directory of drop-in files (*.conf) for the KubeletConfiguration, applied in the order of their names.")
	RegisterProxyMode(flags, &o.ProxyMode)
	RegisterCloudProvider(flags, &o.CloudProvider)
	o.CredentialProviders.Register(flags)
	RegisterSeccompDefault(flags, &o.NoSeccompDefault)
	flags.StringVar(&o.cgroupRoot, "cgroup-root", "", "Parent cgroup of all cgroups of the node.")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "Also log debug messages.")
	flags.IntVar(&o.additional, "further", 0, "Run the additional node with this number, created by up --nodes on this machine, in the network namespace of the caller.")
	return cmd
}

// runWithProgress runs the node and reports its progress to the process that started it in the background. A process in
// the foreground does not report its progress.
func (o *Options) runWithProgress(ctx context.Context) error {
	send, background := progress.ParentSteps()
	if !background {
		return o.run(ctx, progress.New(func(progress.Step) {}))
	}
	s := progress.New(send)
	err := o.run(ctx, s)
	if err != nil {
		s.Fail(err)
	}
	return err
}

// run runs the node until ctx is done. Without --kubeconfig, it reads the options that `init`, `join` or `up --nodes`
// has saved.
func (o *Options) run(ctx context.Context, s *progress.Steps) (err error) {
	if err := command.RequireRoot(); err != nil {
		return err
	}
	l, err := podsunit.Layout(command.Layout(o.root))
	if err != nil {
		return err
	}
	if o.additional > 0 {
		l = l.Numbered(o.additional)
	}
	if o.cgroupRoot != "" {
		l.CgroupRoot = o.cgroupRoot
	}
	if o.Kubeconfig == "" {
		if err := o.Load(l); err != nil {
			return command.ConfigError(err)
		}
	}
	lock, err := pidlock.AcquireMain(ctx, l)
	if err != nil {
		return err
	}
	defer func() {
		lock.Release()
		// `down` stops the service before the runtime, and waits for it. So process 1 reaps the
		// child processes of a service.
		if os.Getenv("NOTIFY_SOCKET") == "" {
			pidlock.ReapChildren(l)
		}
	}()
	if err := preflight.Check(l, []int{layout.PortKubelet, layout.PortProxyHealthz}, o.ProxyMode); err != nil {
		return err
	}
	journal, err := hostjournal.Open(l.Journal("node"))
	if err != nil {
		return err
	}
	defer journal.Close()
	if err := RecordCgroupRoot(journal, l); err != nil {
		return err
	}
	log := o.log(l)
	logging.SetDefault(log)
	group := &lifecycle.Group{Log: log}
	defer func() { err = errors.Join(err, group.Stop()) }()
	if clusterconfig.IsControlPlane(l) {
		certrenewal.Renewer{Layout: l, Log: log}.RenewBeforeStart(o.CertificateConfig(l))
	}
	client, metrics, err := o.bootstrapClientCertificate(ctx, l, group, s)
	if err != nil {
		return err
	}
	cfg, err := o.config(l, log)
	if err != nil {
		return command.ConfigError(err)
	}
	cfg.Journal, cfg.Metrics = journal, metrics
	if err := o.requestServingCertificate(&cfg, group, client); err != nil {
		return err
	}
	if cfg.PacketFilter, err = SelectPacketFilter(ctx, l, o.ProxyMode); err != nil {
		return err
	}
	if err := StartRuntime(ctx, l, "", cfg.PacketFilter); err != nil {
		return err
	}
	group.Start(context.WithoutCancel(ctx), "container runtime", RuntimeSupervisor{Layout: l, PacketFilter: cfg.PacketFilter, Log: cfg.Log})
	if clusterconfig.IsControlPlane(l) {
		group.Start(context.WithoutCancel(ctx), "control plane certificates", certrenewal.Renewer{Layout: l, Log: cfg.Log})
	}
	n, err := New(cfg)
	if err != nil {
		return err
	}
	return o.serve(ctx, cfg, n, s)
}

// CertificateConfig returns where the kubelet's certificates and kubeconfigs are.
func (o *Options) CertificateConfig(l layout.Node) kubeletcerts.Config {
	return kubeletcerts.Config{
		NodeName: o.Name, Dir: filepath.Join(l.Kubelet, "pki"), Kubeconfig: o.Kubeconfig, Bootstrap: o.BootstrapKubeconfig,
	}
}

// bootstrapClientCertificate requests the kubelet's client certificate if it has none, waits for it, and starts
// renewing it. It returns the configuration of the certificates, and the metrics of the client certificate. Without
// --rotate-certificates and --bootstrap-kubeconfig, it requests and renews nothing, and the metrics are nil. It sets
// o.Name.
func (o *Options) bootstrapClientCertificate(ctx context.Context, l layout.Node, group *lifecycle.Group, s *progress.Steps) (kubeletcerts.Config, []prometheus.Collector, error) {
	var err error
	if o.Name, err = o.NodeName(); err != nil {
		return kubeletcerts.Config{}, nil, err
	}
	cfg := o.CertificateConfig(l)
	if !o.Rotate && o.BootstrapKubeconfig == "" {
		return cfg, nil, nil
	}
	began := time.Now()
	keeper, err := kubeletcerts.NewClient(cfg)
	if err != nil {
		return cfg, nil, err
	}
	group.Start(context.WithoutCancel(ctx), "client certificate", keeper)
	what := "the client certificate of node " + o.Name
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: cmp.Or(o.BootstrapTimeout, progress.DefaultTimeout),
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
		Hint:   "see `kubectl get csr`",
	}
	err = group.WaitFor(ctx, what, func(ctx context.Context) error {
		return p.Wait(ctx, what, o.describeBootstrap, progress.UntilReady(keeper))
	})
	if err == nil && o.BootstrapKubeconfig != "" { // on a control plane node, init or join created the certificate
		s.Done(began, "client certificate of node %q is ready", o.Name)
	}
	return cfg, []prometheus.Collector{keeper}, err
}

// describeBootstrap describes why there is no client certificate yet, as far as a request with the bootstrap token
// shows. It returns "" if the token is valid, or if no token is used.
func (o *Options) describeBootstrap(ctx context.Context) string {
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
		return "the bootstrap token is invalid or expired; run `hyperkube token create --print-join-command` on a control plane node and join again with the printed command"
	case err != nil:
		return err.Error()
	}
	return ""
}

// requestServingCertificate starts requesting and renewing the kubelet's serving certificate, and makes cfg use it, if
// --rotate-server-certificates is set. It does not wait for the certificate.
func (o *Options) requestServingCertificate(cfg *Config, group *lifecycle.Group, where kubeletcerts.Config) error {
	if !o.RotateServing {
		return nil
	}
	keeper, err := kubeletcerts.NewServing(where, func() []string { return append([]string{o.Name}, clusterconfig.Strings(cfg.Addresses)...) })
	if err != nil {
		return err
	}
	group.Start(context.Background(), "serving certificate", keeper)
	cfg.Certificate, cfg.CertificateHasMetrics = keeper.Certificate, true
	cfg.Metrics = append(cfg.Metrics, keeper)
	return nil
}

// Load reads the options that `init`, `join` or `up --nodes` has saved. If there are none, the error names the flag
// that is then required.
func (o *Options) Load(l layout.Node) error {
	data, err := os.ReadFile(clusterconfig.NodeFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("--kubeconfig is required on a machine that was not set up with init or join")
	}
	if err != nil {
		return fmt.Errorf("reading the node options: %w", err)
	}
	if err := json.Unmarshal(data, o); err != nil {
		return fmt.Errorf("reading the node options %s: %w", clusterconfig.NodeFile(l), err)
	}
	return nil
}

// Save writes the options to disk, where Load and `node` read them.
func (o *Options) Save(l layout.Node) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the node options: %w", err)
	}
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		return fmt.Errorf("saving the node options: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: clusterconfig.NodeFile(l), Data: append(data, '\n'), Mode: 0o600}); err != nil {
		return fmt.Errorf("saving the node options: %w", err)
	}
	return nil
}

// serve runs n and the informers of the proxy until ctx is done or a component fails. It waits without a limit until
// the node is registered, and then notifies systemd and the process that started this one.
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
		// Informers whose first request fails retry only after seconds, and services are
		// unreachable until then.
		if client.AwaitAPI(ctx, cfg.Proxy.Kube, nil) != nil {
			return nil
		}
		cfg.Proxy.Informers.StartWithContext(ctx)
		<-ctx.Done()
		cfg.Proxy.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "node", n)
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval,
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
	}
	w := startStatus{layout: cfg.Layout, name: cfg.Cluster.NodeName, kube: cfg.Proxy.Kube}
	if err := group.WaitFor(ctx, "the node", func(ctx context.Context) error {
		return p.Wait(ctx, "the node", w.describe, progress.UntilReady(n.kubelet))
	}); err != nil {
		return err
	}
	// From now on, systemd restarts the process if it hangs.
	if err := watchdog.Start(background, group, func(context.Context) error { return n.kubelet.Healthy() }, cfg.Log); err != nil {
		return err
	}
	progress.NotifySystemd("READY=1\nSTATUS=")
	s.Send(progress.Step{Text: fmt.Sprintf("node %q is registered", cfg.Cluster.NodeName), Ready: true})
	cfg.Log.Info("node registered", "node", cfg.Cluster.NodeName)
	select {
	case <-ctx.Done():
		progress.NotifySystemd("STOPPING=1")
		return nil
	case err := <-group.Failed():
		return err
	}
}

// NodeName returns the name of the node: --node-name, or the hostname in lowercase. The error reports an invalid name.
func (o *Options) NodeName() (string, error) {
	name := o.Name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("getting the hostname: %w", err)
		}
		name = strings.ToLower(host)
	}
	return name, clusterconfig.CheckNodeName(name)
}

// Addresses returns the addresses of --node-ip, at most one of each IP family. An unspecified address is replaced by
// the machine's address of that family. Without --node-ip, it returns the machine's addresses of the IP families of the
// cluster's pods.
func (o *Options) Addresses() ([]netip.Addr, error) {
	if o.IP == "" {
		return clusterconfig.NodeAddresses(o.ClusterCIDRs)
	}
	var out []netip.Addr
	for text := range strings.SplitSeq(o.IP, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		if len(out) > 1 || len(out) == 1 && hostaddress.Family(out[0]) == hostaddress.Family(addr) {
			return nil, fmt.Errorf("--node-ip: %s: at most one address of each IP family is allowed", o.IP)
		}
		if addr, err = hostaddress.Resolve(addr.Unmap()); err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		out = append(out, addr)
	}
	return out, nil
}

// ServingNames returns the names and addresses in the serving certificate of a node's kubelet,
// except the name of the node.
func ServingNames(addrs []netip.Addr) []string {
	return append(clusterconfig.Strings(addrs), "127.0.0.1", "::1", "localhost")
}

// log returns a logger that writes to standard error, with debug messages if --verbose is set. If that is the log file of the
// node, it is rotated.
func (o *Options) log(l layout.Node) *slog.Logger {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(logfile.Stderr(l.Log(layout.MainProcess), logfile.Defaults()), &slog.HandlerOptions{Level: level}))
}

// config converts the flags to a Config without Journal and Metrics, and reads the files that they name.
func (o *Options) config(l layout.Node, log *slog.Logger) (Config, error) {
	cfg := Config{
		Layout:     l,
		Cluster:    clusterconfig.Cluster{PodCIDRs: o.ClusterCIDRs, Domain: o.Domain},
		ClusterDNS: o.DNS, StaticPods: o.StaticPods, NetworkMode: network.Mode(o.Network),
		Log: log,
	}
	var err error
	if cfg.Cluster.NodeName, err = o.NodeName(); err != nil {
		return cfg, err
	}
	for _, text := range o.Labels {
		key, value, _ := strings.Cut(text, "=")
		if cfg.Labels == nil {
			cfg.Labels = map[string]string{}
		}
		cfg.Labels[key] = value
	}
	if cfg.Taints, err = kubeletconfig.ParseTaints(o.Taints); err != nil {
		return cfg, fmt.Errorf("--register-with-taints: %w", err)
	}
	if cfg.Addresses, err = o.Addresses(); err != nil {
		return cfg, err
	}
	cfg.CredentialProviders, cfg.NoSeccompDefault, cfg.CloudProvider = o.CredentialProviders, o.NoSeccompDefault, o.CloudProvider
	if cfg.Settings.Kubelet, err = kubeletconfig.LoadFiles(o.Config, o.ConfigDir, nil); err != nil {
		return cfg, err
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return cfg, errors.New("--tls-cert-file and --tls-private-key-file must be set together")
	}
	if o.CertFile != "" {
		cfg.Certificate = kubeletconfig.CertificateFiles(o.CertFile, o.KeyFile)
		if _, err := cfg.Certificate(); err != nil {
			return cfg, err
		}
	}
	if o.ClientCA != "" {
		if cfg.ClientCA, err = kubeletconfig.ReadPool(o.ClientCA); err != nil {
			return cfg, err
		}
	}
	if cfg.Kubelet, err = NewClients("kubeconfig", o.Kubeconfig, "kubelet"); err != nil {
		return cfg, err
	}
	proxy := o.ProxyKubeconfig
	if proxy == "" {
		proxy = o.Kubeconfig
	}
	cfg.Proxy, err = NewClients("proxy-kubeconfig", proxy, "kube-proxy")
	return cfg, err
}

// NewClients returns clients for the kubeconfig path with the user agent agent. Errors name the flag whose value path
// is.
func NewClients(flag, path, agent string) (*client.Clients, error) {
	if path == "" {
		return nil, fmt.Errorf("--%s is required", flag)
	}
	clients, err := client.FromKubeconfig(path, agent)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return clients, nil
}
