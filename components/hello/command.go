package hello

import (
	"time"

	"github.com/spf13/cobra"
)

// NewCommand returns the `hyperkube hello` command.
func NewCommand() *cobra.Command {
	cfg := Config{}
	cmd := &cobra.Command{
		Use:   "hello",
		Short: "Run a small web server to test a cluster",
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
	flags.StringVar(&cfg.GRPCAddress, "grpc-address", "", "Address to serve the gRPC health service on. If empty, it is not served.")
	flags.StringVar(&cfg.Message, "message", "Hello", "First line of the response.")
	flags.DurationVar(&cfg.StartDelay, "start-delay", 0, "How long after startup /readyz begins to succeed.")
	flags.DurationVar(&cfg.Drain, "drain", 2*time.Second, "How long to keep serving requests after SIGTERM, while proxies remove the endpoint.")
	return cmd
}
