package controllers

import (
	"github.com/spf13/pflag"

	"hyperkube/components/controllers/csrsigning"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
	"hyperkube/internal/serving/debugserver"
)

// Flags are flags of kube-controller-manager that change the configuration of controllers in the process of another program. That
// program determines the clients, the CIDRs, the keys, leader election and the log, so it must refuse the flags for these.
type Flags struct {
	options options
	set     *pflag.FlagSet
}

// NewFlags adds the flags of kube-controller-manager to set, which the caller parses.
func NewFlags(set *pflag.FlagSet) *Flags {
	f := &Flags{set: set}
	f.options.flags(set)
	return f
}

// Validate reports invalid values and combinations of flags.
func (f *Flags) Validate() error {
	cfg, err := f.options.config(&client.Clients{})
	if err != nil {
		return err
	}
	if _, err := chooseControllers(cfg.Controllers); err != nil {
		return err
	}
	return f.options.serving.Validate()
}

// Apply returns the configuration of the flags. It takes from base what the program determines, and the values of flags that are
// not set and whose default the program determines.
func (f *Flags) Apply(base Config) (Config, error) {
	cfg, err := f.options.config(base.Clients)
	if err != nil {
		return cfg, err
	}
	cfg.Builder, cfg.Metadata, cfg.Served = base.Builder, base.Metadata, base.Served
	cfg.AllocateNodeCIDRs, cfg.ClusterCIDRs, cfg.ServiceCIDRs = base.AllocateNodeCIDRs, base.ClusterCIDRs, base.ServiceCIDRs
	cfg.RootCA, cfg.SecretTokens, cfg.NamespaceDelay = base.RootCA, base.SecretTokens, base.NamespaceDelay
	cfg.LoadBalancer, cfg.CloudProvider = base.LoadBalancer, base.CloudProvider
	cfg.LeaderElect, cfg.Election = base.LeaderElect, base.Election
	cfg.Clock, cfg.Log = base.Clock, base.Log
	for name, authority := range base.Signing.Authorities {
		if _, set := cfg.Signing.Authorities[name]; !set {
			if cfg.Signing.Authorities == nil {
				cfg.Signing.Authorities = map[string]csrsigning.Authority{}
			}
			cfg.Signing.Authorities[name] = authority
		}
	}
	for flag, keep := range map[string]func(){
		"controllers":                 func() { cfg.Controllers = base.Controllers },
		tracing.FileFlag:              func() { cfg.Tracing = base.Tracing },
		"terminated-pod-gc-threshold": func() { cfg.TerminatedPodThreshold = base.TerminatedPodThreshold },
		"node-monitor-grace-period":   func() { cfg.NodeLifecycle.GracePeriod = base.NodeLifecycle.GracePeriod },
	} {
		if !f.set.Changed(flag) {
			keep()
		}
	}
	return cfg, nil
}

// ApplyServing applies the flags of the secure port to conf. It returns false if the port is not served.
func (f *Flags) ApplyServing(conf *debugserver.Config) bool {
	return f.options.serving.Apply(f.set.Changed, conf)
}
