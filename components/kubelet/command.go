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

	"hyperkube/components/kubelet/certificates"
	"hyperkube/internal/accepted"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/logs"
	"hyperkube/internal/zpages"
)

// options are the flags of kubelet.
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

// NewCommand is `kubelet`.
func NewCommand() *cobra.Command { return newCommand(&options{}) }

// newCommand is the command that fills o.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:          "kubelet",
		Short:        "The node agent: runs the pods that are bound to this node",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "Path of a KubeletConfiguration. Flags have precedence over it.")
	f.StringVar(&o.configDir, "config-dir", "", "Directory whose *.conf files change the KubeletConfiguration, in the order of their names.")
	o.fields.register(f)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server. Without it the kubelet runs static pods alone.")
	f.StringVar(&o.bootstrap, "bootstrap-kubeconfig", "", "Path of the kubeconfig with which to ask for the first client certificate, if --kubeconfig is not there or its certificate is not good any more; --kubeconfig is then written.")
	f.StringVar(&o.certDir, "cert-dir", "", "Directory of the certificates that the kubelet asks for; empty is pki in --root-dir.")
	f.StringVar(&o.hostname, "hostname-override", "", "The node's name instead of the hostname.")
	f.StringVar(&o.endpoint, "container-runtime-endpoint", "", "The container runtime's CRI socket, as in unix:///run/containerd/containerd.sock.")
	f.StringVar(&o.under, "root", "", "Keep everything below this directory instead of in the usual places, as of the cluster commands.")
	f.StringVar(&o.root, "root-dir", layout.Default().Kubelet, "Directory of what the kubelet keeps of pods.")
	f.StringSliceVar(&o.nodeIPs, "node-ip", nil, "The node's address, or two of different families; 0.0.0.0 and :: are whatever the machine has of the family.")
	f.StringSliceVar(&o.dns, "cluster-dns", nil, "Addresses of the cluster's DNS.")
	f.StringVar(&o.domain, "cluster-domain", "", "The cluster's DNS domain.")
	f.StringVar(&o.resolv, "resolv-conf", "", "The node's resolver configuration for pods.")
	f.StringVar(&o.manifests, "pod-manifest-path", "", "Directory of static pods' manifests.")
	f.BoolVar(&o.register, "register-node", true, "Register the node with the API server.")
	f.StringToStringVar(&o.labels, "node-labels", nil, "Labels of the node when it is registered.")
	f.StringSliceVar(&o.taints, "register-with-taints", nil, "Taints of the node when it is registered, as key=value:effect.")
	f.StringVar(&o.cert, "tls-cert-file", "", "Certificate of the HTTPS server. Without it one is made and signed by itself.")
	f.StringVar(&o.key, "tls-private-key-file", "", "Key of the HTTPS server.")
	f.StringVar(&o.clientCA, "client-ca-file", "", "Certificate authority of clients.")
	f.BoolVar(&o.anonymous, "anonymous-auth", false, "Let anonymous requests through to authorisation.")
	f.StringVar(&o.mode, "authorization-mode", "Webhook", "Webhook, or AlwaysAllow for who is authenticated.")
	f.StringVar(&o.address, "address", "", "Address of the HTTPS server.")
	f.IntVar(&o.port, "port", layout.PortKubelet, "Port of the HTTPS server.")
	f.IntVar(&o.healthzPort, "healthz-port", layout.PortKubeletHealthz, "Port of the health check on loopback; 0: none.")
	f.IntVar(&o.maxPods, "max-pods", 110, "Most pods on this node.")
	f.StringVar(&o.cgroupRoot, "cgroup-root", "", "Cgroup below which those of pods are.")
	f.StringVar(&o.providerID, "provider-id", "", "The cloud's name of this node.")
	f.StringVar(&o.podCIDR, "pod-cidr", "", "The pods' addresses until the Node has some.")
	f.BoolVar(&o.seccomp, "seccomp-default", false, "Containers that say nothing get the runtime's seccomp profile.")
	f.StringVar(&o.providers, "image-credential-provider-config", "", "Path of a CredentialProviderConfig, or of a directory of them.")
	f.StringVar(&o.providerDir, "image-credential-provider-bin-dir", "", "Directory of the credential providers' programs.")
	f.DurationVar(&o.deadAge, "minimum-container-ttl-duration", 0, "How long a container that has ended is kept at least.")
	f.IntVar(&o.deadEach, "maximum-dead-containers-per-container", 1, "How many ended containers of one name are kept besides the newest; -1: all.")
	f.IntVar(&o.deadAll, "maximum-dead-containers", -1, "How many ended containers of all pods are kept; -1: no bound.")
	f.IntVarP(&o.verbosity, "v", "v", 0, "Verbosity; 2 and more show what is done to each pod.")
	accepted.Add(f, unused...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), cmd.Flags().Changed, zpages.FlagsOf(cmd.Flags()))
	}
	return cmd
}

// unused are upstream's flags for what is another way here.
var unused = []accepted.Flag{
	{Name: "cloud-provider", Why: "there are no cloud providers in it", Only: []string{"", "external"}},
	{Name: "runtime-cgroups", Why: "the runtime is in the cgroup in which it was started"},
	{Name: "experimental-mounter-path", Why: "mounts are made by the kernel", Only: []string{""}},
	{Name: "experimental-allocatable-ignore-eviction", Why: "thresholds of eviction always count", Only: []string{"false"}, Bool: true},
	{Name: "lock-file", Why: "there is no lock of the kubelet's", Only: []string{""}},
	{Name: "exit-on-lock-contention", Why: "there is no lock of the kubelet's", Only: []string{"false"}, Bool: true},
	{Name: "logging-format", Why: "logging.format of the configuration tells it", Only: []string{"", "text"}},
	{Name: "log-flush-frequency", Why: "nothing is held back"},
	{Name: "vmodule", Why: "verbosity is the same everywhere"},
}

// enter gets the certificates that the configuration asks for from the cluster,
// and renews them until group ends: the client's before anything else, for there
// is no way to the API server without it.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
func (o *options) enter(ctx context.Context, cfg *Config, group *lifecycle.Group) error {
	if o.kubeconfig == "" {
		return nil
	}
	where := certificates.Config{NodeName: cfg.NodeName, Dir: o.certDir, Kubeconfig: o.kubeconfig, Bootstrap: o.bootstrap}
	if where.Dir == "" {
		where.Dir = filepath.Join(cfg.Layout.Kubelet, "pki")
	}
	background := context.WithoutCancel(ctx)
	if o.bootstrap != "" || cfg.File != nil && cfg.File.RotateCertificates {
		keeper, err := certificates.NewClient(where)
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
	keeper, err := certificates.NewServing(where, func() []string { return names })
	if err != nil {
		return err
	}
	group.Start(background, "serving certificate", keeper)
	cfg.Server.Certificate, cfg.Server.CertificateKept = keeper.Certificate, true
	cfg.Metrics = append(cfg.Metrics, keeper)
	return nil
}

// build makes a Config of file and flags; given tells which flags were given.
func (o *options) build(given func(string) bool) (Config, error) {
	cfg := Config{Layout: layout.Default()}
	if o.under != "" {
		cfg.Layout = layout.Under(o.under)
	}
	over, err := o.over(given)
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
		"minimum-container-ttl-duration":        func() { cfg.Containers.Dead.MinAge = o.deadAge },
		"maximum-dead-containers-per-container": func() { cfg.Containers.Dead.Each = &o.deadEach },
		"maximum-dead-containers":               func() { cfg.Containers.Dead.All = &o.deadAll },
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
	logs.Own(cfg.Log)
	group := &lifecycle.Group{Log: cfg.Log}
	defer func() { err = errors.Join(err, group.Stop()) }()
	if err := o.enter(ctx, &cfg, group); err != nil {
		return err
	}
	if o.kubeconfig != "" {
		rest, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return fmt.Errorf("reading the kubeconfig: %w", err)
		}
		rest.UserAgent = "kubelet"
		if n := cfg.Effective(); n.KubeAPIQPS != nil {
			rest.QPS, rest.Burst = float32(*n.KubeAPIQPS), int(n.KubeAPIBurst)
		}
		if cfg.Clients, err = client.New(client.Config{REST: rest}); err != nil {
			return err
		}
	}
	journal, err := hostchange.Open(cfg.Layout.Journal("node"))
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
		cfg.Log.Warn("Failed to marshal effective KubeletConfiguration for logging", "error", err)
	}
	return k.Run(ctx)
}
