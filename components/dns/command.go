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

// NewCommand returns the `hyperkube dns` command.
func NewCommand() *cobra.Command {
	cfg := Config{}
	var kubeconfig string
	var notUpstream []string
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "Run the cluster DNS server",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range notUpstream {
				addr, err := netip.ParseAddr(text)
				if err != nil {
					return fmt.Errorf("--not-upstream: %w", err)
				}
				cfg.NotUpstream = append(cfg.NotUpstream, addr)
			}
			cfg.NotUpstream = append(cfg.NotUpstream, ownAddresses()...)
			rc, err := restConfig(kubeconfig)
			if err != nil {
				return fmt.Errorf("building the client configuration: %w", err)
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
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, the service account of the pod is used.")
	flags.StringVar(&cfg.Address, "address", ":53", "Address to listen on, over UDP and TCP.")
	flags.StringVar(&cfg.HealthAddress, "health-address", ":8080", "Address to serve /health and /ready on. If empty, they are not served.")
	flags.StringVar(&cfg.MetricsAddress, "metrics-address", ":9153", "Address to serve /metrics on. If empty, metrics are not served.")
	flags.StringVar(&cfg.Domain, "cluster-domain", "cluster.local", "DNS domain of the cluster.")
	flags.StringVar(&cfg.ResolvConf, "resolv-conf", "/etc/resolv.conf", "Path to the resolv.conf file with the upstream name servers.")
	flags.StringVar(&cfg.NodeResolvConf, "node-resolv-conf", "", "Path to a resolv.conf file with the name servers that the node uses now. It takes precedence over --resolv-conf if it exists, and is read again when it changes.")
	flags.StringVar(&cfg.CustomDir, "custom-dir", "", "Directory with the files upstreamNameservers and stubDomains, which override the upstream name servers.")
	flags.StringSliceVar(&notUpstream, "not-upstream", nil, "Addresses that are never used as upstream name servers, because they lead back to this server.")
	flags.DurationVar(&cfg.Lameduck, "lameduck", 5*time.Second, "How long to keep answering after the termination signal, while /ready reports that the server is not ready.")
	flags.Uint32Var(&cfg.TTL, "ttl", 5, "TTL of answers in seconds.")
	return cmd
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// ownAddresses returns the addresses of all links in the network namespace of the pod. A name
// server with one of them would be this server itself.
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
