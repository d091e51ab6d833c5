package controllers

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/serving/debugserver"
)

func parseEmbedded(t *testing.T, args ...string) *Flags {
	t.Helper()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f := NewFlags(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestEmbedded checks which fields the flags change in the configuration of a program.
func TestEmbedded(t *testing.T) {
	base := Config{
		Clients: &client.Clients{}, Controllers: []string{"*", "load-balancer-controller"}, AllocateNodeCIDRs: true,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, RootCA: []byte("ca"), NodeLifecycle: nodelifecycle.Config{GracePeriod: 20 * time.Second},
	}
	cfg, err := parseEmbedded(t).Apply(base)
	if err != nil || !slices.Equal(cfg.Controllers, base.Controllers) || !cfg.AllocateNodeCIDRs || string(cfg.RootCA) != "ca" || cfg.NodeLifecycle.GracePeriod != 20*time.Second ||
		cfg.TerminatedPodThreshold != 0 || cfg.NamespaceDelay != 0 || cfg.LeaderElect || len(cfg.ClusterCIDRs) != 1 {
		t.Errorf("without flags: %+v, %v", cfg, err)
	}
	f := parseEmbedded(t, "--concurrent-deployment-syncs=9", "--node-cidr-mask-size=26", "--terminated-pod-gc-threshold=5", "--controllers=*,-cronjob", "--node-monitor-grace-period=30s")
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg, err = f.Apply(base); err != nil || cfg.Concurrency["deployment-controller"] != 9 || cfg.NodeCIDRMaskSizeIPv4 != 26 || cfg.TerminatedPodThreshold != 5 ||
		len(cfg.Controllers) != 2 || cfg.NodeLifecycle.GracePeriod != 30*time.Second {
		t.Errorf("with flags: %+v, %v", cfg, err)
	}
	for _, arg := range []string{"--controllers=nosuch", "--bind-address=here", "--secure-port=70000", "--legacy-service-account-token-clean-up-period=-1s"} {
		if err := parseEmbedded(t, arg).Validate(); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
}

// TestEmbeddedServing checks the address of the secure port.
func TestEmbeddedServing(t *testing.T) {
	for _, c := range []struct {
		args   []string
		addr   string
		served bool
	}{
		{nil, "127.0.0.1:10257", true},
		{[]string{"--bind-address=::", "--secure-port=7"}, "[::]:7", true},
		{[]string{"--secure-port=0"}, "127.0.0.1:0", false},
	} {
		conf := debugserver.Config{Addr: "127.0.0.1:10257"}
		if served := parseEmbedded(t, c.args...).ApplyServing(&conf); served != c.served || conf.Addr != c.addr {
			t.Errorf("%v: %s, %v", c.args, conf.Addr, served)
		}
	}
}
