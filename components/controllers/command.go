package controllers

import (
	"context"
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
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/internal/accepted"
	"hyperkube/internal/client"
	"hyperkube/internal/debugserver"
	"hyperkube/internal/layout"
	"hyperkube/internal/leader"
	"hyperkube/internal/logs"
	"hyperkube/internal/tokens"
	"hyperkube/internal/zpages"
)

// options are the flags of kube-controller-manager. Those that upstream has and
// that change nothing here are accepted all the same, see unused.
type options struct {
	kubeconfig             string
	serving                debugserver.Serving
	controllers            []string
	useAccounts            bool
	leaderElect            bool
	election               leader.Election
	allocateNodeCIDRs      bool
	clusterCIDR            string
	serviceCIDR            string
	mask, mask4, mask6     int
	rootCAFile             string
	accountKeyFile         string
	signing                []*signingFlags
	signingDuration        time.Duration
	tokenCleanUp           time.Duration
	format                 logs.Format
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
}

// concurrency are upstream's --concurrent-…-syncs flags with the controllers
// that they are for.
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

// NewCommand is kube-controller-manager.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   component,
		Short: "The controllers: bring the cluster towards what its objects ask for",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), zpages.FlagsOf(cmd.Flags())) },
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *options) flags(f *pflag.FlagSet) {
	all, off := known()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server.")
	o.serving.AddFlags(f, layout.PortControllerManager)
	f.StringSliceVar(&o.controllers, "controllers", []string{"*"}, "Controllers to run: '*' is all on by default, 'foo' is foo, '-foo' is without foo.\nAll: "+
		strings.Join(all, ", ")+"\nOff by default: "+strings.Join(off, ", "))
	f.BoolVar(&o.useAccounts, "use-service-account-credentials", false, "Run each controller under its own service account.")
	o.election.AddFlags(f, &o.leaderElect, component)
	f.BoolVar(&o.allocateNodeCIDRs, "allocate-node-cidrs", false, "Give each node a part of --cluster-cidr.")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDRs of pods, one or one of each IP family.")
	f.StringVar(&o.serviceCIDR, "service-cluster-ip-range", "", "CIDRs of services, which no node is given.")
	f.IntVar(&o.mask, "node-cidr-mask-size", 0, "Prefix length of a node's part of a single-stack cluster; default 24, or 64 for IPv6.")
	f.IntVar(&o.mask4, "node-cidr-mask-size-ipv4", 0, "Prefix length of a node's IPv4 part; default 24.")
	f.IntVar(&o.mask6, "node-cidr-mask-size-ipv6", 0, "Prefix length of a node's IPv6 part; default 64.")
	f.StringVar(&o.rootCAFile, "root-ca-file", "", "Path of the CAs of the API server, published in each namespace.")
	o.signing = newSigningFlags()
	for _, s := range o.signing {
		whose := s.signer
		if whose == "" {
			whose = "all signers"
		}
		f.StringVar(&s.certFile, s.flag+"-cert-file", "", "Path of the certificate with which requests are signed in the name of "+whose+".")
		f.StringVar(&s.keyFile, s.flag+"-key-file", "", "Path of the key of --"+s.flag+"-cert-file.")
	}
	f.DurationVar(&o.tokenCleanUp, "legacy-service-account-token-clean-up-period", legacytokencleaner.DefaultPeriod, "For how long nobody must have used a token that was made for a service account, before its Secret goes.")
	f.DurationVar(&o.signingDuration, "cluster-signing-duration", csrsigning.DefaultDuration, "How long a signed certificate lives at most.")
	f.DurationVar(&o.autoscaling.SyncPeriod, "horizontal-pod-autoscaler-sync-period", 15*time.Second, "How often each autoscaler is looked at.")
	f.DurationVar(&o.autoscaling.Stabilization, "horizontal-pod-autoscaler-downscale-stabilization", 5*time.Minute, "How long a recommendation holds back a lower one.")
	f.Float64Var(&o.autoscaling.Tolerance, "horizontal-pod-autoscaler-tolerance", 0.1, "How far usage may be off its target, as a part of it.")
	f.DurationVar(&o.autoscaling.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period", 5*time.Minute, "How long after its start a pod's use of the CPU may be that of its start.")
	f.DurationVar(&o.autoscaling.ReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay", 30*time.Second, "How long after its start a pod that is not ready is taken to have never been.")
	o.concurrent = map[string]*int{}
	for _, c := range concurrency {
		o.concurrent[c.controller] = f.Int(c.flag, c.value, "How many objects the "+c.controller+" works on at once.")
	}
	f.Int32Var(&o.maxPerSlice, "max-endpoints-per-slice", 100, "How many endpoints an EndpointSlice may have.")
	f.IntVar(&o.terminatedPods, "terminated-pod-gc-threshold", 12500, "How many finished pods are kept; 0 keeps all.")
	f.DurationVar(&o.lifecycle.GracePeriod, "node-monitor-grace-period", 50*time.Second, "How long a node may be silent.")
	f.DurationVar(&o.lifecycle.StartupGracePeriod, "node-startup-grace-period", time.Minute, "How long a node may be silent at its start.")
	f.Float32Var(&o.evictionRate, "node-eviction-rate", 0.1, "Nodes a second of a healthy zone from which pods are evicted.")
	f.Float32Var(&o.secondaryEvictionRate, "secondary-node-eviction-rate", 0.01, "Nodes a second of an unhealthy, large zone from which pods are evicted.")
	f.Float32Var(&o.unhealthyZoneThreshold, "unhealthy-zone-threshold", 0.55, "Part of nodes not ready from which on a zone is unhealthy.")
	f.IntVar(&o.lifecycle.LargeCluster, "large-cluster-size-threshold", 50, "Size up to which a zone is small.")
	f.BoolVar(&o.dynamicProvisioning, "enable-dynamic-provisioning", true, "Have volumes made for claims whose class says who makes them.")
	f.BoolVar(&o.noForceDetach, "disable-force-detach-on-timeout", false, "Leave volumes attached that a node says are in use, however long it has been silent.")
	o.format.Flag(f)
	f.IntVarP(&o.verbosity, "v", "v", 0, "Verbosity of logs: 4 and more is debugging.")
	f.StringVar(&o.accountKeyFile, "service-account-private-key-file", "", "Key that signs the tokens of service accounts that are kept in Secrets.")
	accepted.Add(f, slices.Concat(accepted.Logging(), accepted.Metrics(), accepted.Versions(), accepted.Leading(), accepted.Client(), accepted.Serving(), unused)...)
}

// unused are upstream's flags for what is always so here, has no limit here, or
// does not exist here.
var unused = []accepted.Flag{
	{Name: "min-resync-period", Why: "nothing is looked at again without a reason"},
	{Name: "controller-start-interval", Why: "controllers start together"},
	{Name: "controller-shutdown-timeout", Why: "controllers end at once"},
	{Name: "node-monitor-period", Why: "nodes are looked at when they could be silent for too long"},
	{Name: "node-sync-period", Why: "nodes are followed"},
	{Name: "namespace-sync-period", Why: "namespaces are followed"},
	{Name: "resource-quota-sync-period", Why: "quotas are followed"},
	{Name: "pvclaimbinder-sync-period", Why: "claims are followed"},
	{Name: "attach-detach-reconcile-sync-period", Why: "attachments are followed"},
	{Name: "disable-attach-detach-reconcile-sync", Why: "attachments are followed", Bool: true},
	{Name: "endpoint-updates-batch-period", Why: "endpoints are written as soon as they are known"},
	{Name: "endpointslice-updates-batch-period", Why: "endpoints are written as soon as they are known"},
	{Name: "mirroring-endpointslice-updates-batch-period", Why: "endpoints are written as soon as they are known"},
	{Name: "mirroring-max-endpoints-per-subset", Why: "1000 of a subset are mirrored"},
	{Name: "cluster-name", Why: "no volumes are named by it"},
	{Name: "enable-garbage-collector", Why: "the garbage collector is left out by --controllers", Only: []string{"true"}, Bool: true},
	{Name: "cloud-provider", Why: "there are no cloud providers in it", Only: []string{"", "external"}},
	{Name: "cloud-config", Why: "there are no cloud providers in it"},
	{Name: "configure-cloud-routes", Why: "there are no cloud providers in it", Bool: true},
	{Name: "external-cloud-volume-plugin", Why: "there are no cloud providers in it"},
	{Name: "route-reconciliation-period", Why: "there are no cloud providers in it"},
	{Name: "cidr-allocator-type", Why: "ranges of nodes are allocated here", Only: []string{"rangeallocator"}},
	{Name: "pv-recycler-pod-template-filepath-nfs", Why: "volumes that are recycled are emptied by this program"},
	{Name: "pv-recycler-pod-template-filepath-hostpath", Why: "volumes that are recycled are emptied by this program"},
	{Name: "pv-recycler-minimum-timeout-nfs", Why: "what empties a volume may take as long as it likes"},
	{Name: "pv-recycler-minimum-timeout-hostpath", Why: "what empties a volume may take as long as it likes"},
	{Name: "pv-recycler-increment-timeout-nfs", Why: "what empties a volume may take as long as it likes"},
	{Name: "pv-recycler-timeout-increment-hostpath", Why: "what empties a volume may take as long as it likes"},
	{Name: "concurrent-service-syncs", Why: "there are no cloud providers in it"},
	{Name: "flex-volume-plugin-dir", Why: "there are no flex volumes"},
	{Name: "enable-hostpath-provisioner", Why: "there is none", Only: []string{"false"}, Bool: true},
	{Name: "enable-leader-migration", Why: "leaders do not migrate", Only: []string{"false"}, Bool: true},
	{Name: "leader-migration-config", Why: "leaders do not migrate", Only: []string{""}},
	{Name: "concurrent-validating-admission-policy-status-syncs", Why: "one is worked on at a time"},
}

func (o *options) run(ctx context.Context, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logs.Own(log)
	own, err := client.FromKubeconfig(o.kubeconfig, component)
	if err != nil {
		return err
	}
	cfg, err := o.config(own)
	if err != nil {
		return err
	}
	cfg.Log, cfg.Election.Health = log, leader.NewHealth()
	m, err := New(cfg)
	if err != nil {
		return err
	}
	conf := debugserver.Config{Flags: flags, Level: level}
	if cfg.LeaderElect {
		conf.Live = []debugserver.Check{{Name: leader.HealthName, Check: cfg.Election.Health.Check}}
	}
	err = o.serving.Beside(ctx, m.Server(conf), func(ctx context.Context) error {
		own.Informers.StartWithContext(ctx)
		return m.Run(ctx)
	})
	own.Informers.Shutdown()
	return err
}

// Server completes the configuration of the controllers' secure port.
func (m *Manager) Server(conf debugserver.Config) debugserver.Config {
	conf.Component, conf.Metrics = component, m.Metrics()
	// One that fails ends the process.
	for _, name := range m.Names() {
		conf.Live = append(conf.Live, debugserver.Check{Name: name, Check: func() error { return nil }})
	}
	return conf
}

// config makes the Config of the flags.
func (o *options) config(own *client.Clients) (Config, error) {
	cfg := Config{
		Clients:                own,
		Controllers:            o.controllers,
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
	if o.mask != 0 {
		if len(cfg.ClusterCIDRs) > 1 {
			return cfg, fmt.Errorf("--node-cidr-mask-size is for single-stack clusters; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
		}
		cfg.NodeCIDRMaskSizeIPv4, cfg.NodeCIDRMaskSizeIPv6 = o.mask, o.mask
	}
	if o.useAccounts {
		cfg.Builder = newTokenBuilder(own)
	}
	if cfg.Signing.Authorities, err = readSigning(o.signing); err != nil {
		return cfg, err
	}
	cfg.Signing.Duration = o.signingDuration
	if cfg.TokenCleanUpPeriod = o.tokenCleanUp; o.tokenCleanUp <= 0 {
		return cfg, fmt.Errorf("--legacy-service-account-token-clean-up-period: invalid CleanUpPeriod: %v", o.tokenCleanUp)
	}
	cfg.Autoscaling = o.autoscaling
	if o.rootCAFile != "" {
		if cfg.RootCA, err = os.ReadFile(o.rootCAFile); err != nil {
			return cfg, fmt.Errorf("reading the root CA: %w", err)
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
