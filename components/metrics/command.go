package metrics

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/client"
)

// NewCommand returns the `hyperkube metrics` command.
func NewCommand() *cobra.Command {
	var cfg Config
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Run the metrics server for pods and nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rc, err := rest.InClusterConfig()
			if kubeconfig != "" {
				rc, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
			}
			if err != nil {
				return fmt.Errorf("building the client configuration: %w", err)
			}
			if cfg.Clients, err = client.New(client.Config{REST: rc}); err != nil {
				return err
			}
			server, err := New(cfg)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, the service account of the pod is used.")
	f.StringVar(&cfg.Address, "address", ":10250", "Address to serve HTTPS on.")
	f.DurationVar(&cfg.Resolution, "metric-resolution", 15*time.Second, "The resolution at which metrics are collected from kubelets.")
	f.BoolVar(&cfg.InsecureKubelets, "kubelet-insecure-tls", false, "Do not verify the serving certificates of kubelets.")
	return cmd
}
