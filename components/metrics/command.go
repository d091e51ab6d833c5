package metrics

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/client"
)

// NewCommand is `hyperkube metrics`.
func NewCommand() *cobra.Command {
	var cfg Config
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "The metrics server: what pods and nodes use",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rc, err := rest.InClusterConfig()
			if kubeconfig != "" {
				rc, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
			}
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
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
	f.StringVar(&kubeconfig, "kubeconfig", "", "Path of a kubeconfig; empty uses the pod's service account.")
	f.StringVar(&cfg.Address, "address", ":10250", "Address to serve HTTPS on.")
	f.DurationVar(&cfg.Resolution, "metric-resolution", 15*time.Second, "How often kubelets are asked.")
	f.BoolVar(&cfg.InsecureKubelets, "kubelet-insecure-tls", false, "Do not verify the certificates of kubelets.")
	return cmd
}
