package hello

import (
	"time"

	"github.com/spf13/cobra"
)

// NewCommand is `hyperkube hello`.
func NewCommand() *cobra.Command {
	cfg := Config{}
	cmd := &cobra.Command{
		Use:   "hello",
		Short: "A small web server to try a cluster with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := New(cfg)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	cmd.AddCommand(newGet())
	flags := cmd.Flags()
	flags.StringVar(&cfg.Address, "address", ":8080", "Address to listen on.")
	flags.StringVar(&cfg.GRPCAddress, "grpc-address", "", "Address to serve gRPC's health service on; empty serves none.")
	flags.StringVar(&cfg.Message, "message", "Hello", "What to say first.")
	flags.DurationVar(&cfg.StartDelay, "start-delay", 0, "How long after the start /readyz begins to succeed.")
	flags.DurationVar(&cfg.Drain, "drain", 2*time.Second, "How long to still take requests after SIGTERM, while proxies learn of it.")
	return cmd
}
