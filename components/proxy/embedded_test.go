package proxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestEmbedded checks which fields a document and flags change in the configuration of a program.
func TestEmbedded(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	base := Config{NodeName: "n", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, HealthzAddress: ":10256", MetricsAddress: "127.0.0.1:10249", LocalhostNodePorts: true}
	apply := func(document string, args ...string) (Config, error) {
		t.Helper()
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f, err := NewFlags(set, []byte(document))
		if err != nil {
			return Config{}, err
		}
		if err := set.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := f.Validate(); err != nil {
			return Config{}, err
		}
		return f.Apply(base)
	}
	cfg, err := apply("")
	if err != nil || cfg.NodeName != "n" || len(cfg.PodCIDRs) != 1 || cfg.HealthzAddress != ":10256" || cfg.MetricsAddress != base.MetricsAddress || !cfg.LocalhostNodePorts {
		t.Errorf("without settings: %+v, %v", cfg, err)
	}
	cfg, err = apply(head+"iptables: {masqueradeAll: true, masqueradeBit: 7, localhostNodePorts: false, minSyncPeriod: 1s}\nconntrack: {tcpEstablishedTimeout: 1h}\nhealthzBindAddress: 192.0.2.1:7\n",
		"--iptables-min-sync-period=2s", "--conntrack-min=9", "--metrics-port=0")
	if err != nil || !cfg.MasqueradeAll || cfg.MasqueradeMark != 1<<7 || cfg.LocalhostNodePorts || cfg.MinSyncPeriod != 2*time.Second || cfg.HealthzAddress != "192.0.2.1:7" || cfg.MetricsAddress != "" ||
		cfg.Conntrack.TCPEstablishedTimeout.Duration != time.Hour || *cfg.Conntrack.Min != 9 || cfg.Conntrack.MaxPerCore != nil || cfg.NodeName != "n" {
		t.Errorf("with settings: %+v, %v", cfg, err)
	}
	cfg, err = apply(head + "mode: nftables\niptables: {masqueradeBit: 7, minSyncPeriod: 1s}\nnftables: {masqueradeAll: true, masqueradeBit: 8}\n")
	if err != nil || !cfg.MasqueradeAll || cfg.MasqueradeMark != 1<<8 || cfg.MinSyncPeriod != time.Second {
		t.Errorf("with nftables: %+v, %v", cfg, err)
	}
	for document, want := range map[string]time.Duration{head + "mode: iptables\n": minSyncIPTables, head + "mode: nftables\n": minSyncNFTables, head + "mode: nftables\nnftables: {minSyncPeriod: 2s}\n": 2 * time.Second} {
		if cfg, err := apply(document); err != nil || cfg.MinSyncPeriod != want {
			t.Errorf("minimum period %s, want %s: %v\n%s", cfg.MinSyncPeriod, want, err, document)
		}
	}
	for _, wrong := range []string{"mode: nftables\nnftables: {masqueradeBit: 32}", "mode: ipvs", "hostnameOverride: a", "clientConnection: {kubeconfig: /k}", "nodePortAddresses: [x]", "modes: a"} {
		if _, err := apply(head + wrong); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
