package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/kubelet/node/kubeletcerts"
	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/zpages"
)

// options are the command line flags of the kubelet.
type options struct {
	config, configDir                               string
	bootstrap, certDir                              string
	fields                                          fieldFlags
	kubeconfig, hostname, endpoint, root, domain    string
	under                                           string
	manifests, address, cert, key, clientCA, resolv string
	cgroupRoot, providerID, podCIDR                 string
	nodeIPs, dns, taints                            []string
	labels                                          map[string]string
	register, anonymous, seccomp                    bool
	port, healthzPort, maxPods                      int
	verbosity                                       int
	providers, providerDir                          string
	deadEach, deadAll                               int
	deadAge                                         time.Duration
	mode                                            string
}

// NewCommand returns the `kubelet` command.
func NewCommand() *cobra.Command { return newCommand(&options{}) }

// newCommand returns the command that stores its flags in o.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:          "kubelet",
		Short:        "Run the node agent that runs the pods bound to this node",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "Path of a KubeletConfiguration file. Flags take precedence over it.")
	f.StringVar(&o.configDir, "config-dir", "", "Directory of drop-in KubeletConfiguration files (*.conf), which are applied in lexical order.")
	o.fields.register(f)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig file for the API server. Without it the kubelet runs only static pods.")
	f.StringVar(&o.bootstrap, "bootstrap-kubeconfig", "", "Path of the kubeconfig file that is used to request the first client certificate, if the file specified by --kubeconfig does not exist or its certificate has expired. The kubelet then writes the file specified by --kubeconfig.")
	f.StringVar(&o.certDir, "cert-dir", "", "Directory of the kubelet's TLS certificates. The default is the directory pki in --root-dir.")
	f.StringVar(&o.hostname, "hostname-override", "", "Node name to use instead of the hostname.")
	f.StringVar(&o.endpoint, "container-runtime-endpoint", "", "Endpoint of the container runtime's CRI socket, for example unix:///run/containerd/containerd.sock.")
	f.StringVar(&o.under, "root", "", "Keep all files below this directory instead of in the default locations, as with --root of the cluster commands.")
	f.StringVar(&o.root, "root-dir", layout.Default().Kubelet, "Directory of the kubelet's files, such as volume mounts.")
	f.StringSliceVar(&o.nodeIPs, "node-ip", nil, "IP address of the node, or two addresses of different families. 0.0.0.0 and :: stand for the machine's address of the family.")
	f.StringSliceVar(&o.dns, "cluster-dns", nil, "IP addresses of the cluster's DNS servers.")
	f.StringVar(&o.domain, "cluster-domain", "", "DNS domain of the cluster.")
	f.StringVar(&o.resolv, "resolv-conf", "", "Resolver configuration file of the node, the basis of the pods' DNS configuration.")
	f.StringVar(&o.manifests, "pod-manifest-path", "", "Directory of static pod manifests.")
	f.BoolVar(&o.register, "register-node", true, "Register the node with the API server.")
	f.StringToStringVar(&o.labels, "node-labels", nil, "Labels to add when the node is registered.")
	f.StringSliceVar(&o.taints, "register-with-taints", nil, "Taints to add when the node is registered, as key=value:effect.")
	f.StringVar(&o.cert, "tls-cert-file", "", "Certificate file of the HTTPS server. Without it the kubelet uses a self-signed certificate.")
	f.StringVar(&o.key, "tls-private-key-file", "", "Private key file of the HTTPS server.")
	f.StringVar(&o.clientCA, "client-ca-file", "", "File of the certificate authorities that sign client certificates.")
	f.BoolVar(&o.anonymous, "anonymous-auth", false, "Allow anonymous requests. They are still subject to authorization.")
	f.StringVar(&o.mode, "authorization-mode", "Webhook", "Authorization mode of the HTTPS server: Webhook or AlwaysAllow.")
	f.StringVar(&o.address, "address", "", "IP address that the HTTPS server listens on.")
	f.IntVar(&o.port, "port", layout.PortKubelet, "Port of the HTTPS server.")
	f.IntVar(&o.healthzPort, "healthz-port", layout.PortKubeletHealthz, "Port of the health check server on localhost. 0 disables it.")
	f.IntVar(&o.maxPods, "max-pods", 110, "Maximum number of pods on this node.")
	f.StringVar(&o.cgroupRoot, "cgroup-root", "", "Root cgroup of the pods' cgroups.")
	f.StringVar(&o.providerID, "provider-id", "", "ID of this node at the cloud provider.")
	f.StringVar(&o.podCIDR, "pod-cidr", "", "CIDR of pod IP addresses until the Node has one.")
	f.BoolVar(&o.seccomp, "seccomp-default", false, "Use the RuntimeDefault seccomp profile for containers that specify none.")
	f.StringVar(&o.providers, "image-credential-provider-config", "", "Path of a CredentialProviderConfig file, or of a directory of such files.")
	f.StringVar(&o.providerDir, "image-credential-provider-bin-dir", "", "Directory of the credential provider binaries.")
	f.DurationVar(&o.deadAge, "minimum-container-ttl-duration", 0, "Minimum age of an exited container before it is garbage collected.")
	f.IntVar(&o.deadEach, "maximum-dead-containers-per-container", 1, "Maximum number of old instances to retain per container. -1 means no limit.")
	f.IntVar(&o.deadAll, "maximum-dead-containers", -1, "Maximum number of exited containers to retain on the node. -1 means no limit.")
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity. 2 and higher logs each operation on a pod.")
	compatflags.Add(f, unused...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), cmd.Flags().Changed, zpages.FlagsOf(cmd.Flags()))
	}
	return cmd
}

// unused are upstream's flags that have no effect here, with the values that are accepted.
var unused = []compatflags.Flag{
	{Name: "cloud-provider", Why: "in-tree cloud providers do not exist", Only: []string{"", "external"}},
	{Name: "runtime-cgroups", Why: "the runtime stays in the cgroup in which it was started"},
	{Name: "experimental-mounter-path", Why: "no external mounter is used", Only: []string{""}},
	{Name: "experimental-allocatable-ignore-eviction", Why: "eviction thresholds always count towards node allocatable", Only: []string{"false"}, Bool: true},
	{Name: "lock-file", Why: "the kubelet uses no lock file", Only: []string{""}},
	{Name: "exit-on-lock-contention", Why: "the kubelet uses no lock file", Only: []string{"false"}, Bool: true},
	{Name: "logging-format", Why: "use logging.format in the configuration file", Only: []string{"", "text"}},
	{Name: "log-flush-frequency", Why: "logs are not buffered"},
	{Name: "vmodule", Why: "verbosity cannot be set per file"},
}

// setUpCertificates requests the certificates that the configuration asks for, and renews them until group
// stops. It waits for the client certificate, because the kubelet cannot reach the API server
// without it.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
func (o *options) setUpCertificates(ctx context.Context, cfg *Config, group *lifecycle.Group) error {
	if o.kubeconfig == "" {
		return nil
	}
	where := kubeletcerts.Config{NodeName: cfg.NodeName, Dir: o.certDir, Kubeconfig: o.kubeconfig, Bootstrap: o.bootstrap}
	if where.Dir == "" {
		where.Dir = filepath.Join(cfg.Layout.Kubelet, "pki")
	}
	background := context.WithoutCancel(ctx)
	if o.bootstrap != "" || cfg.File != nil && cfg.File.RotateCertificates {
		keeper, err := kubeletcerts.NewClient(where)
		if err != nil {
			return err
		}
		cfg.Metrics = append(cfg.Metrics, keeper)
		group.Start(background, "client certificate", keeper)
		if err := group.WaitReady(ctx, "the client certificate", keeper.Ready()); err != nil {
			return err
		}
	}
	if cfg.Server.Certificate != nil || cfg.File == nil || !cfg.File.ServerTLSBootstrap {
		return nil
	}
	ips, err := nodeIPs(cfg.Node.IPs)
	if err != nil {
		return err
	}
	names := []string{cfg.NodeName}
	for _, ip := range ips {
		names = append(names, ip.String())
	}
	keeper, err := kubeletcerts.NewServing(where, func() []string { return names })
	if err != nil {
		return err
	}
	group.Start(background, "serving certificate", keeper)
	cfg.Server.Certificate, cfg.Server.CertificateHasMetrics = keeper.Certificate, true
	cfg.Metrics = append(cfg.Metrics, keeper)
	return nil
}

// build builds a Config from the configuration files and the flags. given reports whether a flag
// was set.
func (o *options) build(given func(string) bool) (Config, error) {
	cfg := Config{Layout: layout.Default()}
	if o.under != "" {
		cfg.Layout = layout.Under(o.under)
	}
	over, err := o.flagValues(given)
	if err != nil {
		return cfg, err
	}
	file, err := LoadFiles(o.config, o.configDir, over)
	if err != nil {
		return cfg, err
	}
	if file != nil {
		if err := cfg.Apply(file); err != nil {
			return cfg, err
		}
	}
	for name, set := range map[string]func(){
		"container-runtime-endpoint": func() { cfg.Endpoint = o.endpoint },
		"root-dir":                   func() { cfg.Layout.Kubelet = o.root },
		"cluster-dns":                func() { cfg.DNS.Servers = o.dns },
		"cluster-domain":             func() { cfg.DNS.Domain = o.domain },
		"resolv-conf":                func() { cfg.DNS.ResolvConf, cfg.DNS.NoResolvConf = o.resolv, o.resolv == "" },
		"pod-manifest-path":          func() { cfg.StaticPods.Dir = o.manifests },
		"register-node":              func() { cfg.Node.NoRegister = !o.register },
		"node-labels":                func() { cfg.Node.Labels = o.labels },
		"anonymous-auth":             func() { cfg.Access.Anonymous = o.anonymous },
		"authorization-mode":         func() { cfg.Access.AlwaysAllow = o.mode == "AlwaysAllow" },
		"address":                    func() { cfg.Server.Address = o.address },
		"port":                       func() { cfg.Server.Port = o.port },
		"healthz-port": func() {
			if cfg.Server.HealthzPort = o.healthzPort; o.healthzPort == 0 {
				cfg.Server.HealthzPort = -1
			}
		},
		"max-pods":                              func() { cfg.Node.MaxPods = int64(o.maxPods) },
		"cgroup-root":                           func() { cfg.Layout.CgroupRoot = o.cgroupRoot },
		"provider-id":                           func() { cfg.Node.ProviderID = o.providerID },
		"pod-cidr":                              func() { cfg.Node.PodCIDR = o.podCIDR },
		"image-credential-provider-config":      func() { cfg.Images.CredentialProviders = o.providers },
		"image-credential-provider-bin-dir":     func() { cfg.Images.CredentialProviderDir = o.providerDir },
		"minimum-container-ttl-duration":        func() { cfg.Containers.DeadContainers.MinAge = o.deadAge },
		"maximum-dead-containers-per-container": func() { cfg.Containers.DeadContainers.PerContainer = &o.deadEach },
		"maximum-dead-containers":               func() { cfg.Containers.DeadContainers.Total = &o.deadAll },
		"seccomp-default":                       func() { cfg.Containers.SeccompDefault = o.seccomp },
	} {
		if given(name) {
			set()
		}
	}
	var errs []error
	if len(o.taints) > 0 {
		taints, err := ParseTaints(o.taints)
		errs = append(errs, err)
		cfg.Node.Taints = taints
	}
	for _, s := range o.nodeIPs {
		ip, err := netip.ParseAddr(s)
		errs = append(errs, err)
		cfg.Node.IPs = append(cfg.Node.IPs, ip)
	}
	if o.cert != "" || o.key != "" {
		cfg.Server.Certificate = CertificateFiles(o.cert, o.key)
		_, err := cfg.Server.Certificate()
		errs = append(errs, err)
	}
	if o.clientCA != "" {
		pool, err := ReadPool(o.clientCA)
		errs = append(errs, err)
		cfg.Access.ClientCA = pool
	}
	cfg.NodeName = o.hostname
	if cfg.NodeName == "" {
		name, err := os.Hostname()
		errs = append(errs, err)
		cfg.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	return cfg, errors.Join(errs...)
}

func (o *options) run(ctx context.Context, given func(string) bool, flags zpages.Flags) (err error) {
	cfg, err := o.build(given)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	cfg.Flags, cfg.Level = flags, level
	if o.verbosity >= 2 || cfg.File != nil && cfg.File.Logging.Verbosity >= 2 {
		level.Set(slog.LevelDebug)
	}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if cfg.File != nil && cfg.File.Logging.Format == "json" {
		handler = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	cfg.Log = slog.New(handler)
	logging.SetDefault(cfg.Log)
	group := &lifecycle.Group{Log: cfg.Log}
	defer func() { err = errors.Join(err, group.Stop()) }()
	if err := o.setUpCertificates(ctx, &cfg, group); err != nil {
		return err
	}
	if o.kubeconfig != "" {
		rest, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return fmt.Errorf("reading kubeconfig: %w", err)
		}
		rest.UserAgent = "kubelet"
		if n := cfg.Effective(); n.KubeAPIQPS != nil {
			rest.QPS, rest.Burst = float32(*n.KubeAPIQPS), int(n.KubeAPIBurst)
		}
		if cfg.Clients, err = client.New(client.Config{REST: rest}); err != nil {
			return err
		}
	}
	journal, err := hostjournal.Open(cfg.Layout.Journal("node"))
	if err != nil {
		return err
	}
	defer journal.Close()
	cfg.Journal = journal
	k, err := New(cfg)
	if err != nil {
		return err
	}
	if text, err := k.cfg.effectiveText(); err == nil {
		cfg.Log.Info("Effective KubeletConfiguration", "config", text)
	} else {
		cfg.Log.Warn("Failed to marshal effective KubeletConfiguration for logging", "err", err)
	}
	return k.Run(ctx)
}
