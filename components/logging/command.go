package logging

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/host/layout"
)

// NewAgentCommand returns the `hyperkube logging-agent` command.
func NewAgentCommand() *cobra.Command {
	var cfg Config
	var kubeconfig, size string
	var format logging.Format
	cmd := &cobra.Command{
		Use:   "logging-agent",
		Short: "Collect, store and search the logs of a node",
		Long: `Collect the logs of the pods and of the processes of a node, store them on the node, send them to sinks, and search them.

It runs in pods of the built-in image. To install it, run "hyperkube addon enable logging".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Log = format.New(os.Stderr, slog.LevelInfo)
			logging.SetDefault(cfg.Log)
			limit, err := resource.ParseQuantity(size)
			if err != nil {
				return fmt.Errorf("parsing --store-size: %w", err)
			}
			if cfg.StoreBytes = limit.Value(); cfg.StoreBytes < 1<<20 {
				return fmt.Errorf("--store-size %s is less than 1Mi", size)
			}
			if cfg.Clients, err = client.FromKubeconfig(kubeconfig, "hyperkube-logging"); err != nil {
				return err
			}
			a, err := New(cfg)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	node := layout.Default()
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, the service account of the pod is used.")
	f.StringVar(&cfg.Node, "node", os.Getenv("NODE_NAME"), "Name of the node. By default that in the environment variable NODE_NAME.")
	f.StringVar(&cfg.PodLogs, "pod-logs", node.PodLogs, "Directory of the logs of pods.")
	f.StringSliceVar(&cfg.NodeLogs, "node-logs", []string{node.LogDir()}, "Directories with log files of the node.")
	f.StringVar(&cfg.Dir, "dir", node.LogStore(), "Directory of the stored logs.")
	f.StringVar(&size, "store-size", "200M", "Maximum size of the stored logs. The oldest are removed.")
	f.StringVar(&cfg.File, "config", "", "Configuration file with rules and sinks. It may not exist, and is read again when it changes.")
	f.StringVar(&cfg.Address, "address", ":9445", "Address to serve the API logs.hyperkube.io on.")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", ":9446", "Address to serve /livez, /readyz and /metrics on.")
	f.StringVar(&cfg.Namespace, "namespace", "kube-system", "Namespace of the agents.")
	f.StringVar(&cfg.Service, "service", "hyperkube-logging", "Name of the Service of the agents.")
	f.StringVar(&cfg.CASecret, "ca-secret", "hyperkube-logging-ca", "Name of the Secret with the CA of the agents' certificates.")
	format.Flag(f)
	return cmd
}
