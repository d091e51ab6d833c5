package cloudcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/components/cloudcontroller/local"
	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/debugserver"
	"hyperkube/internal/serving/zpages"
)

// options are the flags of cloud-controller-manager.
type options struct {
	kubeconfig            string
	serving               debugserver.SecurePortFlags
	provider, cloudConfig string
	clusterCIDR           string
	allocate, routes      bool
	format                logging.Format
	verbosity             int
	cfg                   Config
}

// unused are upstream's flags that are accepted without effect, because what they configure is fixed or does not exist
// here.
var unused = []compatflags.Flag{
	{Name: "use-service-account-credentials", Why: "all controllers use the credentials of the kubeconfig", Only: []string{"false"}, Bool: true},
	{Name: "allow-untagged-cloud", Why: "the provider has no tags", Bool: true},
	{Name: "min-resync-period", Why: "objects are synced only after events"},
	{Name: "external-cloud-volume-plugin", Why: "there are no volumes of cloud providers", Only: []string{""}},
}

// NewCommand returns the cloud-controller-manager command with upstream's flags.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   component,
		Short: "Run the controllers that connect a cluster to a cloud provider",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags()))
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

// flags adds the flags to f.
func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file with the location and credentials of the API server. If empty, the service account of the pod is used.")
	o.serving.AddFlags(f, layout.PortCloudControllerManager)
	f.StringVar(&o.provider, "cloud-provider", local.Name, "The cloud provider. One of: "+local.Name+", for machines without a cloud.")
	f.StringVar(&o.cloudConfig, "cloud-config", "", "Path to the configuration file of the cloud provider.")
	f.StringSliceVar(&o.cfg.Controllers, "controllers", []string{"*"}, "Controllers to run: '*' enables all controllers, 'foo' enables foo, '-foo' disables foo.\nAll controllers: "+strings.Join(Names(), ", "))
	f.StringVar(&o.cfg.ClusterName, "cluster-name", "kubernetes", "Name of the cluster, which the provider may use in names of load balancers and routes.")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDR ranges for pods: one, or one of each IP family. Required for routes.")
	f.BoolVar(&o.allocate, "allocate-node-cidrs", false, "The cluster allocates pod CIDRs to nodes. Required for routes.")
	f.BoolVar(&o.routes, "configure-cloud-routes", true, "Create routes to the pod CIDRs of nodes at the cloud provider, if --allocate-node-cidrs is set.")
	f.DurationVar(&o.cfg.NodeStatusUpdateFrequency, "node-status-update-frequency", 0, "How often the addresses of nodes are updated. 0 means 5m.")
	f.DurationVar(&o.cfg.NodeMonitorPeriod, "node-monitor-period", 0, "How often the provider is asked about nodes that are not ready. 0 means 5s.")
	f.DurationVar(&o.cfg.RouteReconciliationPeriod, "route-reconciliation-period", 0, "How often routes are compared with those of the provider. 0 means 10s.")
	f.IntVar(&o.cfg.ServiceSyncs, "concurrent-service-syncs", 1, "Number of Services that are synced concurrently.")
	f.IntVar(&o.cfg.NodeSyncs, "concurrent-node-syncs", 1, "Number of nodes that are synced concurrently.")
	o.cfg.Election.AddFlags(f, &o.cfg.LeaderElect, component)
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity: 4 or more enables debug logs.")
	compatflags.Add(f, slices.Concat(compatflags.Logging(), compatflags.Metrics(), compatflags.Versions(), compatflags.LeaderElection(), compatflags.Client(), compatflags.Serving(), unused)...)
}

// complete returns the configuration of the flags with clients of the API server.
func (o *options) complete(clients *client.Clients) (Config, error) {
	cfg := o.cfg
	cfg.Clients, cfg.Routes = clients, o.allocate && o.routes
	if o.provider != local.Name {
		return cfg, fmt.Errorf("--cloud-provider: unknown provider %q: this program contains only %q; other providers have their own cloud controller manager", o.provider, local.Name)
	}
	var err error
	if cfg.Provider, err = local.New(o.cloudConfig); err != nil {
		return cfg, fmt.Errorf("--cloud-config: %w", err)
	}
	if o.clusterCIDR == "" {
		return cfg, nil
	}
	for text := range strings.SplitSeq(o.clusterCIDR, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return cfg, fmt.Errorf("--cluster-cidr: %w", err)
		}
		cfg.PodCIDRs = append(cfg.PodCIDRs, p)
	}
	return cfg, nil
}

// run runs the controllers and the secure port until ctx is done or the lease is lost.
func (o *options) run(ctx context.Context, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logging.SetDefault(log)
	clients, err := client.FromKubeconfig(o.kubeconfig, component)
	if err != nil {
		return err
	}
	cfg, err := o.complete(clients)
	if err != nil {
		return err
	}
	conf := debugserver.Config{Component: component, Flags: flags, Level: level}
	if cfg.Log = log; cfg.LeaderElect {
		cfg.Election.Health = leaderelection.NewHealth()
		conf.Live = []debugserver.Check{{Name: leaderelection.HealthName, Check: cfg.Election.Health.Check}}
	}
	m, err := New(cfg)
	if err != nil {
		return err
	}
	conf.Metrics = m.Metrics()
	if path := o.serving.ReviewKubeconfig(); path != "" {
		reviewer, err := client.FromKubeconfig(path, component)
		if err != nil {
			return err
		}
		conf.Reviews = reviewer.Kube
	}
	err = o.serving.RunWith(ctx, conf, func(ctx context.Context) error {
		clients.Informers.StartWithContext(ctx)
		return m.Run(ctx)
	})
	clients.Informers.Shutdown()
	return err
}
