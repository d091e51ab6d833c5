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
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/serving/zpages"
)

// options are the flags of `kube-proxy`, with upstream's names. As upstream, if a configuration
// file is used, only --hostname-override, --root and the flags of the API connection apply in
// addition to it.
//
// Size: one field for each flag.
type options struct {
	file, writeTo         string
	kubeconfig, apiServer string
	root, hostname        string
	config                *kubeproxyv1alpha1.KubeProxyConfiguration
	// explicit contains only the conntrack settings that the user set; for these, a failure to set the kernel
	// parameter is an error. config also contains the defaults of the others.
	explicit kubeproxyv1alpha1.KubeProxyConntrackConfiguration

	maxPerCore, min, masqueradeBit int32
	healthzPort, metricsPort       int32
	established, closeWait         time.Duration
	clusterCIDRs                   []string
	mode                           string
	cleanup, initOnly              bool
	verbosity                      int
	format                         logging.Format
}

// NewCommand returns the `kube-proxy` command.
func NewCommand() *cobra.Command {
	cmd, _ := command()
	return cmd
}

// command returns the `kube-proxy` command and the options that its flags set, which tests read.
func command() (*cobra.Command, *options) {
	o := &options{config: defaults()}
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "Run the service proxy of a node",
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
	o.flags(cmd.Flags())
	return cmd, o
}

func (o *options) flags(f *pflag.FlagSet) {
	c := o.config
	f.StringVar(&o.file, "config", "", "The path to the configuration file. Flags for settings of this file are ignored.")
	f.StringVar(&o.writeTo, "write-config-to", "", "If set, write the default configuration values to this file and exit.")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to kubeconfig file with authorization information.")
	f.StringVar(&o.apiServer, "master", "", "The address of the Kubernetes API server (overrides any value in kubeconfig)")
	f.StringVar(&o.root, "root", "", "Root directory of all files on disk, instead of the standard paths, as in the cluster commands.")
	f.StringVar(&o.hostname, "hostname-override", "", "If non-empty, will be used as the name of the Node that kube-proxy is running on. If unset, the node name is assumed to be the same as the node's hostname.")
	f.StringVar(&o.mode, "proxy-mode", "", "Which proxy mode to use: iptables, nftables or auto (iptables if it is installed and works, otherwise nftables). If empty, auto is used.")
	f.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "The CIDR range of the pods in the cluster. Traffic to services from other sources is masqueraded.")
	f.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "A list of CIDR ranges that contain valid node IPs for NodePort services, or 'primary', 'localhost' or 'all'. If empty, all local IPs accept NodePort connections.")
	f.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", "", "Mode to use to detect local traffic: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix. If empty, ClusterCIDR is used.")
	f.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "A bridge interface name. When --detect-local-mode is set to BridgeInterface, kube-proxy considers traffic to be local if it originates from this bridge.")
	f.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "An interface name prefix. When --detect-local-mode is set to InterfaceNamePrefix, kube-proxy considers traffic to be local if it originates from any interface whose name begins with this prefix.")
	f.BoolVar(&o.cleanup, "cleanup", false, "If true cleanup iptables and nftables rules and exit.")
	f.BoolVar(&o.initOnly, "init-only", false, "If true, perform any initialization steps that must be done with full root privileges, and then exit.")
	f.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "SNAT all traffic sent via Service cluster IPs.")
	f.Int32Var(&o.masqueradeBit, "iptables-masquerade-bit", 14, "The bit of the fwmark space to mark packets requiring SNAT with. Must be within the range [0, 31].")
	f.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true, "Whether to allow NodePort services to be accessed via localhost.")
	f.DurationVar(&c.IPTables.SyncPeriod.Duration, "iptables-sync-period", c.IPTables.SyncPeriod.Duration, "How often to check that the iptables rules still exist, if the kernel does not send notifications.")
	f.DurationVar(&c.IPTables.MinSyncPeriod.Duration, "iptables-min-sync-period", c.IPTables.MinSyncPeriod.Duration, "The minimum period between iptables rule resyncs.")
	f.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "The IP address and port for the health check server to serve on. If empty, the health check server is disabled.")
	f.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "The IP address and port for the metrics server to serve on. If empty, the metrics server is disabled.")
	f.Int32Var(&o.healthzPort, "healthz-port", portHealthz, "The port to bind the health check server to, if --healthz-bind-address has none. Use 0 to disable.")
	f.Int32Var(&o.metricsPort, "metrics-port", portMetrics, "The port to bind the metrics server to, if --metrics-bind-address has none. Use 0 to disable.")
	for port, address := range map[string]string{"healthz-port": "healthz-bind-address", "metrics-port": "metrics-bind-address"} {
		// the flag exists
		_ = f.MarkDeprecated(port, "This flag is deprecated and will be removed in a future release. Please use --"+address+" instead.")
	}
	f.BoolVar(&c.EnableProfiling, "profiling", false, "If true enables profiling via web interface on /debug/pprof of the metrics address.")
	f.Int32Var(&o.maxPerCore, "conntrack-max-per-core", defaultMaxPerCore, "Maximum number of NAT connections to track per CPU core (0 to leave the limit as-is and ignore conntrack-min).")
	f.Int32Var(&o.min, "conntrack-min", defaultMin, "Minimum number of conntrack entries to allocate, regardless of conntrack-max-per-core.")
	f.DurationVar(&o.established, "conntrack-tcp-timeout-established", defaultEstablished, "Idle timeout for established TCP connections (0 to leave as-is)")
	f.DurationVar(&o.closeWait, "conntrack-tcp-timeout-close-wait", defaultCloseWait, "NAT timeout for TCP connections in the CLOSE_WAIT state (0 to leave as-is)")
	f.BoolVar(&c.Conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Enable liberal mode for tracking TCP packets by setting nf_conntrack_tcp_be_liberal to 1")
	f.DurationVar(&c.Conntrack.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Idle timeout for UNREPLIED UDP connections (0 to leave as-is)")
	f.DurationVar(&c.Conntrack.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Idle timeout for ASSURED UDP connections (0 to leave as-is)")
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Number for the log level verbosity. Levels above 3 enable debug logs.")
	compatflags.Add(f, slices.Concat(compatflags.Logging(), compatflags.Metrics(), compatflags.Versions(), compatflags.Client(), ignoredFlags)...)
}

// ignoredFlags are upstream's flags that are accepted without effect.
var ignoredFlags = []compatflags.Flag{
	{Name: "bind-address", Why: "the node's addresses are read from its Node object"},
	{Name: "bind-address-hard-fail", Why: "a bind failure is always an error", Bool: true},
	{Name: "config-sync-period", Why: "changes are watched through the API"},
	{Name: "oom-score-adj", Why: "the value of the parent process is inherited"},
	{Name: "ipvs-sync-period", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-min-sync-period", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-scheduler", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-exclude-cidrs", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-strict-arp", Why: "there is no proxy mode ipvs", Bool: true},
	{Name: "ipvs-tcp-timeout", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-tcpfin-timeout", Why: "there is no proxy mode ipvs"},
	{Name: "ipvs-udp-timeout", Why: "there is no proxy mode ipvs"},
}

// complete reads the configuration file if there is one, and otherwise copies flags to the
// configuration. Then it sets the flags that apply in both cases. changed reports whether the user
// set a flag.
func (o *options) complete(changed func(string) bool) error {
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
		o.applyFlags(changed)
	}
	o.explicit = c.Conntrack
	c.Conntrack = completeConntrack(o.explicit)
	if o.hostname != "" {
		c.HostnameOverride = o.hostname
	}
	if o.kubeconfig != "" {
		c.ClientConnection.Kubeconfig = o.kubeconfig
	}
	return nil
}

// applyFlags applies the flags that changed reports as set and that are not bound to a field of the configuration.
func (o *options) applyFlags(changed func(string) bool) {
	c := o.config
	if changed("proxy-mode") {
		c.Mode = kubeproxyv1alpha1.ProxyMode(o.mode)
	}
	if changed("cluster-cidr") {
		c.ClusterCIDR = strings.Join(o.clusterCIDRs, ",")
	}
	if c.IPTables.MasqueradeBit == nil || changed("iptables-masquerade-bit") {
		c.IPTables.MasqueradeBit = &o.masqueradeBit
	}
	for _, a := range []struct {
		address  *string
		port     int32
		portFlag string
	}{{&c.HealthzBindAddress, o.healthzPort, "healthz-port"}, {&c.MetricsBindAddress, o.metricsPort, "metrics-port"}} {
		if changed(a.portFlag) {
			if *a.address = withPort(*a.address, a.port); a.port == 0 {
				*a.address = ""
			}
		}
	}
	if changed("conntrack-max-per-core") {
		c.Conntrack.MaxPerCore = &o.maxPerCore
	}
	if changed("conntrack-min") {
		c.Conntrack.Min = &o.min
	}
	if changed("conntrack-tcp-timeout-established") {
		c.Conntrack.TCPEstablishedTimeout = &metav1.Duration{Duration: o.established}
	}
	if changed("conntrack-tcp-timeout-close-wait") {
		c.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: o.closeWait}
	}
}

// write implements --write-config-to: it writes the configuration, including defaults, to a file.
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

// run runs the proxy until ctx is canceled. With --init-only it only sets the kernel parameters.
// flags are the values that /flagz shows.
func (o *options) run(ctx context.Context, flags zpages.Flags) (err error) {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	cfg := Config{Flags: flags, Configuration: func() any { return o.config }, Level: level}
	cfg.Log = o.format.New(os.Stderr, level)
	logging.SetDefault(cfg.Log)
	if err := apply(o.config, &cfg); err != nil {
		return err
	}
	if cfg.NodeName == "" {
		if cfg.NodeName, err = os.Hostname(); err != nil {
			return fmt.Errorf("reading the hostname: %w", err)
		}
	}
	cfg.NodeName = strings.ToLower(cfg.NodeName)
	place := layout.Default()
	if o.root != "" {
		place = layout.Under(o.root)
	}
	if cfg.Journal, err = hostjournal.Open(place.Journal("node")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cfg.Journal.Close()) }()
	cfg.Conntrack = o.explicit
	if o.initOnly {
		p := &Proxy{cfg: cfg}
		if err := p.applyConntrackSettings(); err != nil {
			return err
		}
		if p.localhostNodePorts() {
			return p.routeLocalnet()
		}
		return nil
	}
	if cfg.PacketFilter, err = packetfilter.Mode(o.config.Mode).Select(ctx, cfg.Journal); err != nil {
		return fmt.Errorf("--proxy-mode: %w", err)
	}
	rest, err := clientcmd.BuildConfigFromFlags(o.apiServer, o.config.ClientConnection.Kubeconfig)
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

// parsePrefixes parses CIDRs and clears their host bits.
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
