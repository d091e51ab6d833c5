package controllers

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/keyutil"

	"hyperkube/internal/client"
)

// TestFlags parses the flags of a kubeadm manifest.
func TestFlags(t *testing.T) {
	data, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "sa.key")
	if err := os.WriteFile(key, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		err  bool
	}{
		{name: "kubeadm", args: []string{
			"--allocate-node-cidrs=true", "--authentication-kubeconfig=/a", "--authorization-kubeconfig=/a", "--bind-address=127.0.0.1",
			"--client-ca-file=/ca", "--cluster-cidr=10.244.0.0/16,fd00::/48", "--cluster-name=kubernetes", "--controllers=*,bootstrapsigner,tokencleaner", "--kubeconfig=/k", "--leader-elect=true",
			"--requestheader-client-ca-file=/r", "--service-account-private-key-file=" + key,
			"--service-cluster-ip-range=10.96.0.0/16", "--use-service-account-credentials=true", "--concurrent-deployment-syncs=9", "--load-balancer-pool=192.0.2.0/28,2001:db8::1-2001:db8::9", "-v=2",
		}},
		{name: "one mask size with two IP families", args: []string{"--cluster-cidr=10.244.0.0/16,fd00::/48", "--node-cidr-mask-size=24"}, err: true},
		{name: "invalid pool", args: []string{"--load-balancer-pool=nonsense"}, err: true},
		{name: "pool with pods", args: []string{"--cluster-cidr=10.244.0.0/16", "--load-balancer-pool=192.0.2.0/28,10.244.1.0/24"}, err: true},
		{name: "pool with Services", args: []string{"--service-cluster-ip-range=10.96.0.0/16", "--load-balancer-pool=10.96.255.1-10.97.0.9"}, err: true},
		{name: "invalid range", args: []string{"--cluster-cidr=nonsense"}, err: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o options
			f := pflag.NewFlagSet("t", pflag.ContinueOnError)
			o.flags(f)
			if err := f.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			cfg, err := o.config(&client.Clients{})
			if (err != nil) != tc.err {
				t.Fatalf("error %v", err)
			}
			if tc.err {
				return
			}
			if cfg.ClusterCIDRs[1] != netip.MustParsePrefix("fd00::/48") || cfg.ServiceCIDRs[0] != netip.MustParsePrefix("10.96.0.0/16") ||
				cfg.Concurrency["deployment-controller"] != 9 || cfg.LoadBalancer.Pool.String() != "192.0.2.0/28,2001:db8::1-2001:db8::9" || cfg.Builder == nil || !cfg.LeaderElect || !cfg.AllocateNodeCIDRs {
				t.Errorf("config %+v", cfg)
			}
			if _, err := chooseControllers(cfg.Controllers); err != nil {
				t.Error(err)
			}
		})
	}
}
