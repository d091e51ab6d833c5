package dns

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/client"
)

// NewCommand is `hyperkube dns`.
func NewCommand() *cobra.Command {
	cfg := Config{}
	var kubeconfig string
	var own []string
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "The cluster's DNS server",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range own {
				addr, err := netip.ParseAddr(text)
				if err != nil {
					return fmt.Errorf("--not-upstream: %w", err)
				}
				cfg.NotUpstream = append(cfg.NotUpstream, addr)
			}
			cfg.NotUpstream = append(cfg.NotUpstream, ownAddresses()...)
			rc, err := restConfig(kubeconfig)
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
			}
			clients, err := client.New(client.Config{REST: rc})
			if err != nil {
				return err
			}
			cfg.Informers = clients.Informers
			server, err := New(cfg)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Path of a kubeconfig; empty uses the pod's service account.")
	flags.StringVar(&cfg.Address, "address", ":53", "Address to answer on, over UDP and TCP.")
	flags.StringVar(&cfg.HealthAddress, "health-address", ":8080", "Address of /health and /ready; empty serves none.")
	flags.StringVar(&cfg.MetricsAddress, "metrics-address", ":9153", "Address of /metrics; empty serves none.")
	flags.StringVar(&cfg.Domain, "cluster-domain", "cluster.local", "Domain of the cluster.")
	flags.StringVar(&cfg.ResolvConf, "resolv-conf", "/etc/resolv.conf", "File with the upstream name servers.")
	flags.StringVar(&cfg.CustomDir, "custom-dir", "", "Folder with the files upstreamNameservers and stubDomains, which say who is asked instead.")
	flags.StringSliceVar(&own, "not-upstream", nil, "Addresses that are never asked, for they lead back here.")
	flags.DurationVar(&cfg.Lameduck, "lameduck", 5*time.Second, "How long to answer on, not ready any more, after being told to end.")
	flags.Uint32Var(&cfg.TTL, "ttl", 5, "Seconds for which an answer may be remembered.")
	return cmd
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// ownAddresses are those of this pod's links.
func ownAddresses() []netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr().Unmap())
		}
	}
	return out
}
