package gateway

import (
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
)

// NewCommand returns the `hyperkube gateway` command.
func NewCommand() *cobra.Command {
	cfg := Config{}
	var kubeconfig string
	var accessLog bool
	var format logging.Format
	var verbosity int
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run the gateway for the Gateway API and Ingress",
		Long: `Run the gateway: the controller and data plane for the Gateway API and for Ingresses.

It runs in pods of the built-in image. To install it, run "hyperkube addon enable gateway".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbosity > 0 {
				level = slog.LevelDebug
			}
			cfg.Log = format.New(os.Stderr, level)
			logging.SetDefault(cfg.Log)
			clients, err := client.FromKubeconfig(kubeconfig, "hyperkube-gateway")
			if err != nil {
				return err
			}
			cfg.Clients = clients
			if accessLog {
				cfg.Plane.AccessLog = os.Stdout
			}
			g, err := New(cfg)
			if err != nil {
				return err
			}
			return g.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, the service account of the pod is used.")
	flags.StringVar(&cfg.Address, "address", ":9440", "Address to serve /healthz, /readyz and /metrics on.")
	flags.StringVar(&cfg.Namespace, "namespace", "kube-system", "Namespace of the pods of the gateway and of the Services that it creates.")
	flags.StringVar(&cfg.Owner, "daemonset", "hyperkube-gateway", "Name of the DaemonSet of the gateway, which owns the Services, and of the lease for leader election.")
	flags.StringToStringVar(&cfg.Selector, "selector", map[string]string{"k8s-app": "hyperkube-gateway"}, "Labels of the pods of the gateway.")
	flags.DurationVar(&cfg.Lameduck, "lameduck", 5*time.Second, "How long to accept connections after the termination signal, while /readyz reports that the gateway is not ready.")
	flags.DurationVar(&cfg.Plane.DrainTimeout, "drain-timeout", 20*time.Second, "How long active requests and connections may continue when the gateway stops or a port is closed.")
	flags.BoolVar(&cfg.Plane.ProxyProtocol, "proxy-protocol", false, "Expect a PROXY protocol header, version 1 or 2, on all TCP connections.")
	flags.BoolVar(&accessLog, "access-log", false, "Write a JSON object for each request to the standard output.")
	flags.IntVar(&cfg.Plane.Limits.HeaderBytes, "max-header-bytes", 64<<10, "Maximum size of a request header in bytes.")
	flags.Int64Var(&cfg.Plane.Limits.BodyBytes, "max-body-bytes", 0, "Maximum size of a request body in bytes. 0 means no limit.")
	flags.IntVar(&cfg.Plane.Limits.Connections, "max-connections", 16384, "Maximum number of connections of each port. Others wait.")
	flags.DurationVar(&cfg.Plane.Limits.HeaderTimeout, "header-timeout", 10*time.Second, "Time in which a TLS handshake or a request header must be complete.")
	flags.DurationVar(&cfg.Plane.Limits.IdleTimeout, "idle-timeout", 3*time.Minute, "Time after which idle connections are closed.")
	flags.IntVarP(&verbosity, "v", "v", 0, "Log level: 0 for information, higher for details.")
	format.Flag(flags)
	return cmd
}
