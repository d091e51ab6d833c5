package controllers

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

	"hyperkube/components/controllers/csrsigning"
	"hyperkube/components/controllers/horizontalpodautoscaling"
	"hyperkube/components/controllers/legacytokencleaner"
	"hyperkube/components/controllers/loadbalancer"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/debugserver"
	"hyperkube/internal/serving/zpages"
)

// options are the flags of kube-controller-manager. Upstream's flags that have no effect here are
// accepted and ignored, see unused.
//
// Size: one field for each flag of kube-controller-manager.
type options struct {
	kubeconfig             string
	serving                debugserver.SecurePortFlags
	controllers            []string
	useAccounts            bool
	leaderElect            bool
	election               leaderelection.Election
	allocateNodeCIDRs      bool
	clusterCIDR            string
	serviceCIDR            string
	mask, mask4, mask6     int
	rootCAFile             string
	accountKeyFile         string
	signing                []*signingFlags
	signingDuration        time.Duration
	tokenCleanUp           time.Duration
	format                 logging.Format
	autoscaling            horizontalpodautoscaling.Config
	concurrent             map[string]*int
	maxPerSlice            int32
	terminatedPods         int
	lifecycle              nodelifecycle.Config
	evictionRate           float32
	secondaryEvictionRate  float32
	unhealthyZoneThreshold float32
	verbosity              int
	dynamicProvisioning    bool
	noForceDetach          bool
	cloudProvider          cloudprovider.Setting
	loadBalancerPool       []string
	tracingFile            string
}

// concurrency lists upstream's --concurrent-…-syncs flags, with the controller and the default of
// each.
var concurrency = []struct {
	flag, controller string
	value            int
}{
	{"concurrent-deployment-syncs", "deployment-controller", 5},
	{"concurrent-endpoint-syncs", "endpoints-controller", 5},
	{"concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller", 5},
	{"concurrent-service-endpoint-syncs", "endpointslice-controller", 5},
	{"mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller", 5},
	{"concurrent-gc-syncs", "garbage-collector-controller", 20},
	{"concurrent-namespace-syncs", "namespace-controller", 10},
	{"concurrent-replicaset-syncs", "replicaset-controller", 5},
	{"concurrent-rc-syncs", "replicationcontroller-controller", 5},
	{"concurrent-resource-quota-syncs", "resourcequota-controller", 5},
	{"concurrent-statefulset-syncs", "statefulset-controller", 5},
	{"concurrent-daemonset-syncs", "daemonset-controller", 2},
	{"concurrent-job-syncs", "job-controller", 5},
	{"concurrent-cron-job-syncs", "cronjob-controller", 5},
	{"concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller", 5},
	{"concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller", 5},
	{"concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller", 5},
	{"concurrent-resourceclaim-syncs", "resourceclaim-controller", 10},
	{"concurrent-device-taint-eviction-syncs", "device-taint-eviction-controller", 8},
	{"concurrent-disruption-syncs", "disruption-controller", 5},
}

// NewCommand returns the kube-controller-manager command, which runs the controllers as a separate process with
// upstream's flags. `hyperkube up` runs them without this command.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   component,
		Short: "Run the controllers that reconcile the state of the cluster with its objects",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags())) },
	}
	o.flags(cmd.Flags())
	return cmd
}

// flags adds the flags to f, with upstream's names and defaults.
func (o *options) flags(f *pflag.FlagSet) {
	all, off := knownControllers()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file with the location and credentials of the API server.")
	o.serving.AddFlags(f, layout.PortControllerManager)
	f.StringSliceVar(&o.controllers, "controllers", []string{"*"}, "Controllers to run: '*' enables all on-by-default controllers, 'foo' enables foo, '-foo' disables foo.\nAll controllers: "+
		strings.Join(all, ", ")+"\nDisabled-by-default controllers: "+strings.Join(off, ", "))
	cloudprovider.Register(f, &o.cloudProvider, "Set to external if a cloud controller manager runs. Then load-balancer-controller does not run.")
	f.BoolVar(&o.useAccounts, "use-service-account-credentials", false, "Run each controller with its own service account credentials.")
	o.election.AddFlags(f, &o.leaderElect, component)
	f.BoolVar(&o.allocateNodeCIDRs, "allocate-node-cidrs", false, "Allocate a pod CIDR from --cluster-cidr to each node.")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDR ranges for pods: one, or one of each IP family.")
	f.StringVar(&o.serviceCIDR, "service-cluster-ip-range", "", "CIDR ranges for Services, which are never allocated to nodes.")
	f.IntVar(&o.mask, "node-cidr-mask-size", 0, "Mask size of the node CIDRs in a single-stack cluster; default 24 for IPv4, 64 for IPv6.")
	f.IntVar(&o.mask4, "node-cidr-mask-size-ipv4", 0, "Mask size of the IPv4 node CIDRs; default 24.")
	f.IntVar(&o.mask6, "node-cidr-mask-size-ipv6", 0, "Mask size of the IPv6 node CIDRs; default 64.")
	f.StringVar(&o.rootCAFile, "root-ca-file", "", "Path to the CA certificates of the API server, published in each namespace.")
	o.signing = newSigningFlags()
	for _, s := range o.signing {
		signers := s.signer
		if signers == "" {
			signers = "all signers"
		}
		f.StringVar(&s.certFile, s.flag+"-cert-file", "", "Path to the CA certificate that signs certificates for "+signers+".")
		f.StringVar(&s.keyFile, s.flag+"-key-file", "", "Path to the private key of --"+s.flag+"-cert-file.")
	}
	f.DurationVar(&o.tokenCleanUp, "legacy-service-account-token-clean-up-period", legacytokencleaner.DefaultPeriod, "How long an auto-generated service account token Secret must be unused before it is deleted.")
	f.DurationVar(&o.signingDuration, "cluster-signing-duration", csrsigning.DefaultDuration, "Maximum lifetime of signed certificates.")
	f.DurationVar(&o.autoscaling.SyncPeriod, "horizontal-pod-autoscaler-sync-period", 15*time.Second, "How often each HorizontalPodAutoscaler is evaluated.")
	f.DurationVar(&o.autoscaling.Stabilization, "horizontal-pod-autoscaler-downscale-stabilization", 5*time.Minute, "How far back the autoscaler looks at recommendations; it does not scale down below the highest of them.")
	f.Float64Var(&o.autoscaling.Tolerance, "horizontal-pod-autoscaler-tolerance", 0.1, "Minimum relative difference between actual and desired metrics at which the autoscaler scales.")
	f.DurationVar(&o.autoscaling.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period", 5*time.Minute, "Period after pod start in which CPU samples of pods that are not ready may be ignored.")
	f.DurationVar(&o.autoscaling.ReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay", 30*time.Second, "Period after pod start in which readiness changes count as initial readiness.")
	o.concurrent = map[string]*int{}
	for _, c := range concurrency {
		o.concurrent[c.controller] = f.Int(c.flag, c.value, "Number of objects that the "+c.controller+" syncs concurrently.")
	}
	f.Int32Var(&o.maxPerSlice, "max-endpoints-per-slice", 100, "Maximum number of endpoints in an EndpointSlice.")
	f.IntVar(&o.terminatedPods, "terminated-pod-gc-threshold", 12500, "Number of terminated pods to keep before the oldest are deleted; 0 keeps all.")
	f.DurationVar(&o.lifecycle.GracePeriod, "node-monitor-grace-period", 50*time.Second, "How long a running node may be unresponsive before it is marked unhealthy.")
	f.DurationVar(&o.lifecycle.StartupGracePeriod, "node-startup-grace-period", time.Minute, "How long a starting node may be unresponsive before it is marked unhealthy.")
	f.Float32Var(&o.evictionRate, "node-eviction-rate", 0.1, "Number of nodes per second from which pods are evicted in a healthy zone.")
	f.Float32Var(&o.secondaryEvictionRate, "secondary-node-eviction-rate", 0.01, "Number of nodes per second from which pods are evicted in a large unhealthy zone.")
	f.Float32Var(&o.unhealthyZoneThreshold, "unhealthy-zone-threshold", 0.55, "Fraction of not ready nodes in a zone at which the zone is unhealthy.")
	f.IntVar(&o.lifecycle.LargeCluster, "large-cluster-size-threshold", 50, "Number of nodes up to which a zone is small.")
	f.BoolVar(&o.dynamicProvisioning, "enable-dynamic-provisioning", true, "Enable dynamic volume provisioning for claims whose storage class has a provisioner.")
	f.BoolVar(&o.noForceDetach, "disable-force-detach-on-timeout", false, "Do not detach volumes from an unresponsive node that reports them as in use, however long it is unresponsive.")
	f.StringSliceVar(&o.loadBalancerPool, "load-balancer-pool", nil, "Addresses that the load-balancer-controller assigns to Services of type LoadBalancer: CIDRs or ranges such as 192.0.2.10-192.0.2.20. If empty, Services have the addresses of nodes.")
	tracing.AddFileFlag(f, &o.tracingFile)
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity: 4 or more enables debug logs.")
	f.StringVar(&o.accountKeyFile, "service-account-private-key-file", "", "Path to the private key that signs service account tokens stored in Secrets.")
	compatflags.Add(f, slices.Concat(compatflags.Logging(), compatflags.Metrics(), compatflags.Versions(), compatflags.LeaderElection(), compatflags.Client(), compatflags.Serving(), unused)...)
}

// unused are upstream's flags that are accepted without effect, because what they configure is fixed or does not exist
// here.
var unused = []compatflags.Flag{
	{Name: "min-resync-period", Why: "objects are synced only after events"},
	{Name: "controller-start-interval", Why: "all controllers start together"},
	{Name: "controller-shutdown-timeout", Why: "controllers stop immediately"},
	{Name: "node-monitor-period", Why: "each node is checked when its grace period expires"},
	{Name: "node-sync-period", Why: "nodes are watched"},
	{Name: "namespace-sync-period", Why: "namespaces are watched"},
	{Name: "resource-quota-sync-period", Why: "quotas are watched"},
	{Name: "pvclaimbinder-sync-period", Why: "claims are watched"},
	{Name: "attach-detach-reconcile-sync-period", Why: "attachments are watched"},
	{Name: "disable-attach-detach-reconcile-sync", Why: "attachments are watched", Bool: true},
	{Name: "endpoint-updates-batch-period", Why: "endpoints are written without batching"},
	{Name: "endpointslice-updates-batch-period", Why: "endpoints are written without batching"},
	{Name: "mirroring-endpointslice-updates-batch-period", Why: "endpoints are written without batching"},
	{Name: "mirroring-max-endpoints-per-subset", Why: "at most 1000 addresses of a subset are mirrored"},
	{Name: "cluster-name", Why: "it is not part of volume names"},
	{Name: "enable-garbage-collector", Why: "use --controllers to disable the garbage collector", Only: []string{"true"}, Bool: true},
	{Name: "cloud-config", Why: "there are no built-in cloud providers"},
	{Name: "configure-cloud-routes", Why: "there are no built-in cloud providers", Bool: true},
	{Name: "external-cloud-volume-plugin", Why: "there are no built-in cloud providers"},
	{Name: "route-reconciliation-period", Why: "there are no built-in cloud providers"},
	{Name: "cidr-allocator-type", Why: "there is only the range allocator", Only: []string{"rangeallocator"}},
	{Name: "pv-recycler-pod-template-filepath-nfs", Why: "volumes are recycled by this program"},
	{Name: "pv-recycler-pod-template-filepath-hostpath", Why: "volumes are recycled by this program"},
	{Name: "pv-recycler-minimum-timeout-nfs", Why: "recycling a volume has no timeout"},
	{Name: "pv-recycler-minimum-timeout-hostpath", Why: "recycling a volume has no timeout"},
	{Name: "pv-recycler-increment-timeout-nfs", Why: "recycling a volume has no timeout"},
	{Name: "pv-recycler-timeout-increment-hostpath", Why: "recycling a volume has no timeout"},
	{Name: "concurrent-service-syncs", Why: "there are no built-in cloud providers"},
	{Name: "flex-volume-plugin-dir", Why: "there are no FlexVolumes"},
	{Name: "enable-hostpath-provisioner", Why: "there is no hostPath provisioner", Only: []string{"false"}, Bool: true},
	{Name: "enable-leader-migration", Why: "there is no leader migration", Only: []string{"false"}, Bool: true},
	{Name: "leader-migration-config", Why: "there is no leader migration", Only: []string{""}},
	{Name: "concurrent-validating-admission-policy-status-syncs", Why: "policies are checked one at a time"},
}

// run runs the controllers and the secure port until ctx is done, a controller fails or the lease is lost.
func (o *options) run(ctx context.Context, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logging.SetDefault(log)
	own, err := client.FromKubeconfig(o.kubeconfig, component)
	if err != nil {
		return err
	}
	cfg, err := o.config(own)
	if err != nil {
		return err
	}
	cfg.Log, cfg.Election.Health = log, leaderelection.NewHealth()
	m, err := New(cfg)
	if err != nil {
		return err
	}
	conf := debugserver.Config{Flags: flags, Level: level}
	if cfg.LeaderElect {
		conf.Live = []debugserver.Check{{Name: leaderelection.HealthName, Check: cfg.Election.Health.Check}}
	}
	if path := o.serving.ReviewKubeconfig(); path != "" {
		reviewer, err := client.FromKubeconfig(path, component)
		if err != nil {
			return err
		}
		conf.Reviews = reviewer.Kube
	}
	err = o.serving.RunWith(ctx, m.Server(conf), func(ctx context.Context) error {
		own.Informers.StartWithContext(ctx)
		return m.Run(ctx)
	})
	own.Informers.Shutdown()
	return err
}

// Server adds the name, metrics and health checks of the controllers to conf, the configuration of the secure port.
func (m *Manager) Server(conf debugserver.Config) debugserver.Config {
	conf.Component, conf.Metrics = component, m.Metrics()
	// The check always succeeds, because a controller that fails stops the process.
	for _, name := range m.Names() {
		conf.Live = append(conf.Live, debugserver.Check{Name: name, Check: func() error { return nil }})
	}
	return conf
}

// config converts the flags to a Config and reads the files that they name. own are the clients of the controller
// manager.
func (o *options) config(own *client.Clients) (Config, error) {
	cfg := Config{
		Clients:                own,
		Controllers:            o.controllers,
		LoadBalancer:           loadbalancer.Config{Reserved: loadbalancer.ComponentPorts()},
		AllocateNodeCIDRs:      o.allocateNodeCIDRs,
		NodeCIDRMaskSizeIPv4:   o.mask4,
		NodeCIDRMaskSizeIPv6:   o.mask6,
		Concurrency:            map[string]int{},
		MaxEndpointsPerSlice:   o.maxPerSlice,
		NamespaceDelay:         5 * time.Second,
		TerminatedPodThreshold: o.terminatedPods,
		NoDynamicProvisioning:  !o.dynamicProvisioning,
		NoForceDetach:          o.noForceDetach,
		NodeLifecycle:          o.lifecycle,
		CloudProvider:          o.cloudProvider,
		LeaderElect:            o.leaderElect,
		Election:               o.election,
	}
	cfg.NodeLifecycle.EvictionRate = float64(o.evictionRate)
	cfg.NodeLifecycle.SecondaryEvictionRate = float64(o.secondaryEvictionRate)
	cfg.NodeLifecycle.UnhealthyZone = float64(o.unhealthyZoneThreshold)
	for name, n := range o.concurrent {
		cfg.Concurrency[name] = *n
	}
	var err error
	if cfg.ClusterCIDRs, err = prefixes("cluster-cidr", o.clusterCIDR); err != nil {
		return cfg, err
	}
	if cfg.ServiceCIDRs, err = prefixes("service-cluster-ip-range", o.serviceCIDR); err != nil {
		return cfg, err
	}
	if cfg.LoadBalancer.Pool, err = LoadBalancerPool(o.loadBalancerPool, cfg.ClusterCIDRs, cfg.ServiceCIDRs); err != nil {
		return cfg, fmt.Errorf("--load-balancer-pool: %w", err)
	}
	if o.mask != 0 {
		if len(cfg.ClusterCIDRs) > 1 {
			return cfg, fmt.Errorf("--node-cidr-mask-size applies to single-stack clusters only; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
		}
		cfg.NodeCIDRMaskSizeIPv4, cfg.NodeCIDRMaskSizeIPv6 = o.mask, o.mask
	}
	if o.useAccounts {
		cfg.Builder = newTokenBuilder(own)
	}
	if cfg.Signing.Authorities, err = readSigning(o.signing); err != nil {
		return cfg, err
	}
	if cfg.Tracing, err = tracing.ReadFile(o.tracingFile); err != nil {
		return cfg, err
	}
	cfg.Signing.Duration = o.signingDuration
	if cfg.TokenCleanUpPeriod = o.tokenCleanUp; o.tokenCleanUp <= 0 {
		return cfg, fmt.Errorf("--legacy-service-account-token-clean-up-period: invalid CleanUpPeriod: %v", o.tokenCleanUp)
	}
	cfg.Autoscaling = o.autoscaling
	if o.rootCAFile != "" {
		if cfg.RootCA, err = os.ReadFile(o.rootCAFile); err != nil {
			return cfg, fmt.Errorf("reading root CA: %w", err)
		}
	}
	if o.accountKeyFile != "" {
		key, err := tokens.LoadSigner(o.accountKeyFile)
		if err != nil {
			return cfg, err
		}
		if cfg.SecretTokens, err = tokens.NewSecretSigner(key); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// LoadBalancerPool parses the addresses of a load balancer pool. They must not be in the CIDRs of pods and Services.
func LoadBalancerPool(texts []string, pods, services []netip.Prefix) (addresspool.Pool, error) {
	pool, err := addresspool.Parse(texts)
	if err != nil {
		return pool, err
	}
	return pool, errors.Join(pool.CheckDisjoint("a CIDR of pods", pods...), pool.CheckDisjoint("a CIDR of Services", services...))
}

// prefixes parses a comma-separated list of CIDR ranges. flag is the name of its flag, for errors.
func prefixes(flag, list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		out = append(out, p)
	}
	return out, nil
}
