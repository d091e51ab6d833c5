package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/accepted"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/logs"
	"hyperkube/internal/zpages"
)

// options are the flags of `kube-proxy`, under upstream's names. With a
// configuration file only --hostname-override, --root and what concerns the way
// to the API counts beside it, as upstream.
type options struct {
	file, writeTo      string
	kubeconfig, master string
	root, hostname     string
	config             *kubeproxyv1alpha1.KubeProxyConfiguration
	// asked is what somebody said of connections; the configuration has defaults.
	asked kubeproxyv1alpha1.KubeProxyConntrackConfiguration

	maxPerCore, min, masqueradeBit int32
	healthzPort, metricsPort       int32
	established, closeWait         time.Duration
	clusterCIDRs                   []string
	mode                           string
	cleanup, initOnly              bool
	verbosity                      int
	format                         logs.Format
}

// NewCommand is `kube-proxy`.
func NewCommand() *cobra.Command {
	cmd, _ := command()
	return cmd
}

func command() (*cobra.Command, *options) {
	o := &options{config: defaults()}
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "The service proxy of a node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags().Changed); err != nil {
				return err
			}
			if o.writeTo != "" {
				return o.write()
			}
			if o.cleanup {
				return cleanUp(cmd.Context())
			}
			return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags()))
		},
	}
	f, c := cmd.Flags(), o.config
	f.StringVar(&o.file, "config", "", "Path of a KubeProxyConfiguration; other flags of what it says do not count then.")
	f.StringVar(&o.writeTo, "write-config-to", "", "Write the configuration with all defaults to this file, and end.")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server.")
	f.StringVar(&o.master, "master", "", "Address of the API server, instead of what the kubeconfig says.")
	f.StringVar(&o.root, "root", "", "Keep what is on disk below this directory instead of in the usual places, as of the cluster commands.")
	f.StringVar(&o.hostname, "hostname-override", "", "Name of this node; empty is the hostname.")
	f.StringVar(&o.mode, "proxy-mode", mode, "How traffic is led: iptables.")
	f.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "Ranges of all pods; traffic to services from elsewhere is masqueraded.")
	f.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "Ranges of the node's addresses on which node ports answer, or primary, localhost, all; empty is all.")
	f.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", "", "How traffic of this node's pods is told: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix; empty is ClusterCIDR.")
	f.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "The bridge of BridgeInterface.")
	f.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "How the names of links of InterfaceNamePrefix begin.")
	f.BoolVar(&o.cleanup, "cleanup", false, "Take away all rules of service proxies, and end.")
	f.BoolVar(&o.initOnly, "init-only", false, "Set kernel parameters, and end.")
	f.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to cluster IPs.")
	f.Int32Var(&o.masqueradeBit, "iptables-masquerade-bit", 14, "Bit of packets' marks that asks for masquerading, from 1 to 31.")
	f.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true, "Let node ports answer on 127.0.0.1.")
	f.DurationVar(&c.IPTables.SyncPeriod.Duration, "iptables-sync-period", c.IPTables.SyncPeriod.Duration, "How often it is looked whether the rules are still there, where the kernel does not tell.")
	f.DurationVar(&c.IPTables.MinSyncPeriod.Duration, "iptables-min-sync-period", c.IPTables.MinSyncPeriod.Duration, "Least time between two writes of the rules.")
	f.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "Address of /healthz; empty serves none.")
	f.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "Address of /metrics; empty serves none.")
	f.Int32Var(&o.healthzPort, "healthz-port", portHealthz, "Port of /healthz where --healthz-bind-address has none; 0 serves none.")
	f.Int32Var(&o.metricsPort, "metrics-port", portMetrics, "Port of /metrics where --metrics-bind-address has none; 0 serves none.")
	for port, address := range map[string]string{"healthz-port": "healthz-bind-address", "metrics-port": "metrics-bind-address"} {
		_ = f.MarkDeprecated(port, "This flag is deprecated and will be removed in a future release. Please use --"+address+" instead.") // it is there
	}
	f.BoolVar(&c.EnableProfiling, "profiling", false, "Serve /debug/pprof beside the metrics.")
	f.Int32Var(&o.maxPerCore, "conntrack-max-per-core", defaultMaxPerCore, "Connections that the kernel remembers for each core; 0 leaves its bound as it is.")
	f.Int32Var(&o.min, "conntrack-min", defaultMin, "Connections that it remembers at least, with --conntrack-max-per-core.")
	f.DurationVar(&o.established, "conntrack-tcp-timeout-established", defaultEstablished, "How long it remembers silent TCP connections; 0 leaves that as it is.")
	f.DurationVar(&o.closeWait, "conntrack-tcp-timeout-close-wait", defaultCloseWait, "How long it remembers half closed ones; 0 leaves that as it is.")
	f.BoolVar(&c.Conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Let the kernel follow connections whose packets are out of their window.")
	f.DurationVar(&c.Conntrack.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "How long it remembers UDP packets without an answer; 0 leaves that as it is.")
	f.DurationVar(&c.Conntrack.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "How long it remembers those with answers; 0 leaves that as it is.")
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log level: above 3 shows what is for debugging.")
	accepted.Add(f, slices.Concat(accepted.Logging(), accepted.Metrics(), accepted.Versions(), accepted.Client(), unused)...)
	return cmd, o
}

// unused are upstream's flags for what is another way here.
var unused = []accepted.Flag{
	{Name: "bind-address", Why: "the node's addresses are those of its Node"},
	{Name: "bind-address-hard-fail", Why: "an address that cannot be served is an error always", Bool: true},
	{Name: "config-sync-period", Why: "changes are told by the API server"},
	{Name: "oom-score-adj", Why: "it is as the process is started"},
	{Name: "ipvs-sync-period", Why: "the mode is iptables"},
	{Name: "ipvs-min-sync-period", Why: "the mode is iptables"},
	{Name: "ipvs-scheduler", Why: "the mode is iptables"},
	{Name: "ipvs-exclude-cidrs", Why: "the mode is iptables"},
	{Name: "ipvs-strict-arp", Why: "the mode is iptables", Bool: true},
	{Name: "ipvs-tcp-timeout", Why: "the mode is iptables"},
	{Name: "ipvs-tcpfin-timeout", Why: "the mode is iptables"},
	{Name: "ipvs-udp-timeout", Why: "the mode is iptables"},
}

// complete puts flags and file together.
func (o *options) complete(given func(string) bool) error {
	c := o.config
	c.Kind, c.APIVersion = "KubeProxyConfiguration", kubeproxyv1alpha1.SchemeGroupVersion.String()
	if o.file != "" {
		data, err := os.ReadFile(o.file)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		*c = *defaults()
		if err := decode(data, c); err != nil {
			return fmt.Errorf("--config %s: %w", o.file, err)
		}
	} else {
		c.Mode, c.ClusterCIDR = kubeproxyv1alpha1.ProxyMode(o.mode), strings.Join(o.clusterCIDRs, ",")
		c.IPTables.MasqueradeBit = &o.masqueradeBit
		if c.HealthzBindAddress = withPort(c.HealthzBindAddress, o.healthzPort); o.healthzPort == 0 {
			c.HealthzBindAddress = ""
		}
		if c.MetricsBindAddress = withPort(c.MetricsBindAddress, o.metricsPort); o.metricsPort == 0 {
			c.MetricsBindAddress = ""
		}
		if given("conntrack-max-per-core") {
			c.Conntrack.MaxPerCore = &o.maxPerCore
		}
		if given("conntrack-min") {
			c.Conntrack.Min = &o.min
		}
		if given("conntrack-tcp-timeout-established") {
			c.Conntrack.TCPEstablishedTimeout = &metav1.Duration{Duration: o.established}
		}
		if given("conntrack-tcp-timeout-close-wait") {
			c.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: o.closeWait}
		}
	}
	o.asked = c.Conntrack
	c.Conntrack = completeConntrack(o.asked)
	if o.hostname != "" {
		c.HostnameOverride = o.hostname
	}
	if o.kubeconfig != "" {
		c.ClientConnection.Kubeconfig = o.kubeconfig
	}
	return nil
}

// write writes the whole configuration to a file.
func (o *options) write() error {
	data, err := yaml.Marshal(o.config)
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: o.writeTo, Data: data, Mode: 0o600}); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

func (o *options) run(ctx context.Context, flags zpages.Flags) (err error) {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	cfg := Config{Flags: flags, Configuration: func() any { return o.config }, Level: level}
	cfg.Log = o.format.New(os.Stderr, level)
	logs.Own(cfg.Log)
	if err := apply(o.config, &cfg); err != nil {
		return err
	}
	if cfg.NodeName == "" {
		if cfg.NodeName, err = os.Hostname(); err != nil {
			return fmt.Errorf("asking for the hostname: %w", err)
		}
	}
	cfg.NodeName = strings.ToLower(cfg.NodeName)
	place := layout.Default()
	if o.root != "" {
		place = layout.Under(o.root)
	}
	if cfg.Journal, err = hostchange.Open(place.Journal("node")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cfg.Journal.Close()) }()
	cfg.Conntrack = o.asked
	if o.initOnly {
		p := &Proxy{cfg: cfg}
		if err := p.boundConnections(); err != nil {
			return err
		}
		if p.localhostNodePorts() {
			return p.routeLocalnet()
		}
		return nil
	}
	rest, err := clientcmd.BuildConfigFromFlags(o.master, o.config.ClientConnection.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	rest.UserAgent = "kube-proxy"
	if cfg.Clients, err = client.New(client.Config{REST: rest}); err != nil {
		return err
	}
	p, err := New(cfg)
	if err != nil {
		return err
	}
	cfg.Clients.Informers.Start(ctx.Done())
	return p.Run(ctx)
}

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}
