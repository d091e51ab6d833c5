package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
)

// NewCommand is `kube-proxy`.
func NewCommand() *cobra.Command {
	cfg := Config{}
	var kubeconfig, mode, root string
	var clusterCIDRs []string
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "The service proxy of a node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if mode != "" && mode != "iptables" {
				return fmt.Errorf("--proxy-mode=%s is not known: iptables is", mode)
			}
			var err error
			if cfg.PodCIDRs, err = parsePrefixes(clusterCIDRs); err != nil {
				return fmt.Errorf("--cluster-cidr: %w", err)
			}
			if cfg.NodeName == "" {
				name, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("asking for the hostname: %w", err)
				}
				cfg.NodeName = strings.ToLower(name)
			}
			place := layout.Default()
			if root != "" {
				place = layout.Under(root)
			}
			journal, err := hostchange.Open(place.Journal("node"))
			if err != nil {
				return err
			}
			defer journal.Close()
			cfg.Journal = journal
			return run(cmd.Context(), cfg, kubeconfig)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server.")
	flags.StringVar(&root, "root", "", "Keep what is on disk below this folder instead of in the usual places, as of the cluster commands.")
	flags.StringVar(&mode, "proxy-mode", "iptables", "How traffic is led: iptables.")
	flags.StringVar(&cfg.NodeName, "hostname-override", "", "Name of this node; empty is the hostname.")
	flags.StringSliceVar(&clusterCIDRs, "cluster-cidr", nil, "Ranges of all pods; traffic to services from elsewhere is masqueraded.")
	flags.BoolVar(&cfg.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to cluster IPs.")
	flags.BoolVar(&cfg.LocalhostNodePorts, "iptables-localhost-nodeports", true, "Let node ports answer on 127.0.0.1.")
	flags.DurationVar(&cfg.MinSyncPeriod, "iptables-min-sync-period", 50*time.Millisecond, "Least time between two writes of the rules.")
	flags.StringVar(&cfg.HealthzAddress, "healthz-bind-address", "0.0.0.0:10256", "Address of /healthz; empty serves none.")
	flags.StringVar(&cfg.MetricsAddress, "metrics-bind-address", "127.0.0.1:10249", "Address of /metrics; empty serves none.")
	return cmd
}

func run(ctx context.Context, cfg Config, kubeconfig string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
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

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}
