package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/zpages"
)

// options are the flags of kubelet.
type options struct {
	config, configDir                               string
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
	f.StringVar(&o.configDir, "config-dir", "", "Folder whose *.conf files change the KubeletConfiguration, in the order of their names.")
	o.fields.register(f)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server. Without it the kubelet runs static pods alone.")
	f.StringVar(&o.hostname, "hostname-override", "", "The node's name instead of the hostname.")
	f.StringVar(&o.endpoint, "container-runtime-endpoint", "", "The container runtime's CRI socket, as in unix:///run/containerd/containerd.sock.")
	f.StringVar(&o.under, "root", "", "Keep everything below this folder instead of in the usual places, as of the cluster commands.")
	f.StringVar(&o.root, "root-dir", layout.Default().Kubelet, "Directory of what the kubelet keeps of pods.")
	f.StringSliceVar(&o.nodeIPs, "node-ip", nil, "The node's address, or two of different families.")
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
	f.StringVar(&o.providers, "image-credential-provider-config", "", "Path of a CredentialProviderConfig, or of a folder of them.")
	f.StringVar(&o.providerDir, "image-credential-provider-bin-dir", "", "Folder of the credential providers' programs.")
	f.DurationVar(&o.deadAge, "minimum-container-ttl-duration", 0, "How long a container that has ended is kept at least.")
	f.IntVar(&o.deadEach, "maximum-dead-containers-per-container", 1, "How many ended containers of one name are kept besides the newest; -1: all.")
	f.IntVar(&o.deadAll, "maximum-dead-containers", -1, "How many ended containers of all pods are kept; -1: no bound.")
	f.IntVarP(&o.verbosity, "v", "v", 0, "Verbosity; 2 and more show what is done to each pod.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), cmd.Flags().Changed, zpages.FlagsOf(cmd.Flags()))
	}
	return cmd
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
		"cluster-dns":                func() { cfg.ClusterDNS = o.dns },
		"cluster-domain":             func() { cfg.ClusterDomain = o.domain },
		"resolv-conf":                func() { cfg.ResolvConf = o.resolv },
		"pod-manifest-path":          func() { cfg.StaticPods = o.manifests },
		"register-node":              func() { cfg.NoRegister = !o.register },
		"node-labels":                func() { cfg.Labels = o.labels },
		"anonymous-auth":             func() { cfg.Anonymous = o.anonymous },
		"authorization-mode":         func() { cfg.AlwaysAllow = o.mode == "AlwaysAllow" },
		"address":                    func() { cfg.Address = o.address },
		"port":                       func() { cfg.Port = o.port },
		"healthz-port": func() {
			if cfg.HealthzPort = o.healthzPort; o.healthzPort == 0 {
				cfg.HealthzPort = -1
			}
		},
		"max-pods":                              func() { cfg.MaxPods = int64(o.maxPods) },
		"cgroup-root":                           func() { cfg.Layout.CgroupRoot = o.cgroupRoot },
		"provider-id":                           func() { cfg.ProviderID = o.providerID },
		"pod-cidr":                              func() { cfg.PodCIDR = o.podCIDR },
		"image-credential-provider-config":      func() { cfg.CredentialProviders = o.providers },
		"image-credential-provider-bin-dir":     func() { cfg.CredentialProviderDir = o.providerDir },
		"minimum-container-ttl-duration":        func() { cfg.Dead.MinAge = o.deadAge },
		"maximum-dead-containers-per-container": func() { cfg.Dead.Each = &o.deadEach },
		"maximum-dead-containers":               func() { cfg.Dead.All = &o.deadAll },
		"seccomp-default":                       func() { cfg.SeccompDefault = o.seccomp },
	} {
		if given(name) {
			set()
		}
	}
	var errs []error
	if len(o.taints) > 0 {
		taints, err := ParseTaints(o.taints)
		errs = append(errs, err)
		cfg.Taints = taints
	}
	for _, s := range o.nodeIPs {
		ip, err := netip.ParseAddr(s)
		errs = append(errs, err)
		cfg.IPs = append(cfg.IPs, ip)
	}
	if o.cert != "" || o.key != "" {
		cfg.Certificate = CertificateFiles(o.cert, o.key)
		_, err := cfg.Certificate()
		errs = append(errs, err)
	}
	if o.clientCA != "" {
		pool, err := ReadPool(o.clientCA)
		errs = append(errs, err)
		cfg.ClientCA = pool
	}
	cfg.NodeName = o.hostname
	if cfg.NodeName == "" {
		name, err := os.Hostname()
		errs = append(errs, err)
		cfg.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	return cfg, errors.Join(errs...)
}

func (o *options) run(ctx context.Context, given func(string) bool, flags zpages.Flags) error {
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
	return k.Run(ctx)
}
