package etcd

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
)

// NewCommand is `hyperkube etcd`: a member as a process of its own, with the
// flags of etcd that Kubernetes installers use.
func NewCommand() *cobra.Command {
	cfg := Config{}
	var heartbeat, election uint
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Run an etcd member",
		Long: "Run an etcd member. The flags are those of etcd that Kubernetes needs. Without any it is\n" +
			"a cluster of one that only this machine can reach.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.HeartbeatInterval = time.Duration(heartbeat) * time.Millisecond
			cfg.ElectionTimeout = time.Duration(election) * time.Millisecond
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			server, err := New(cfg)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.DataDir, "data-dir", "default.etcd", "Path to the data directory.")
	flags.StringVar(&cfg.Name, "name", defaultName, "Name of this member.")
	flags.StringSliceVar(&cfg.ListenClientURLs, "listen-client-urls", nil, fmt.Sprintf("URLs to listen on for clients. (default %s)", local(TLS{}, 2379)))
	flags.StringSliceVar(&cfg.ListenClientHTTPURLs, "listen-client-http-urls", nil, "URLs to serve HTTP clients on (/health, /metrics, /version). The client URLs serve gRPC alone then, which takes half of the CPU.")
	flags.StringSliceVar(&cfg.AdvertiseClientURLs, "advertise-client-urls", nil, "This member's client URLs to tell others. (default: those listened on)")
	flags.StringSliceVar(&cfg.ListenPeerURLs, "listen-peer-urls", nil, fmt.Sprintf("URLs to listen on for other members. (default %s)", local(TLS{}, 2380)))
	flags.StringSliceVar(&cfg.AdvertisePeerURLs, "initial-advertise-peer-urls", nil, "This member's peer URLs to tell others. (default: those listened on)")
	flags.StringSliceVar(&cfg.ListenMetricsURLs, "listen-metrics-urls", nil, "URLs to serve /metrics and /health on in addition to the client URLs.")
	flags.StringVar(&cfg.InitialCluster, "initial-cluster", "", "All members at the cluster's first start, as name=URL,… (default: this one alone)")
	flags.StringVar(&cfg.InitialClusterState, "initial-cluster-state", "new", "'new', or 'existing' to join a cluster.")
	flags.StringVar(&cfg.InitialClusterToken, "initial-cluster-token", "etcd-cluster", "Token that keeps clusters apart at their first start.")
	flags.StringVar(&cfg.ClientTLS.CertFile, "cert-file", "", "Path to the certificate shown to clients.")
	flags.StringVar(&cfg.ClientTLS.KeyFile, "key-file", "", "Path to its key.")
	flags.StringVar(&cfg.ClientTLS.TrustedCAFile, "trusted-ca-file", "", "Path to the CA of clients' certificates.")
	flags.BoolVar(&cfg.ClientTLS.ClientCertAuth, "client-cert-auth", false, "Turn away clients without a certificate of that CA.")
	flags.StringVar(&cfg.PeerTLS.CertFile, "peer-cert-file", "", "Path to the certificate shown to other members.")
	flags.StringVar(&cfg.PeerTLS.KeyFile, "peer-key-file", "", "Path to its key.")
	flags.StringVar(&cfg.PeerTLS.TrustedCAFile, "peer-trusted-ca-file", "", "Path to the CA of other members' certificates.")
	flags.BoolVar(&cfg.PeerTLS.ClientCertAuth, "peer-client-cert-auth", false, "Turn away members without a certificate of that CA.")
	flags.Uint64Var(&cfg.SnapshotCount, "snapshot-count", defaultSnapshotCount, "Number of transactions after which raft's log is cut.")
	flags.UintVar(&heartbeat, "heartbeat-interval", 0, fmt.Sprintf("Raft's heartbeat in milliseconds. (default %d, %d for a cluster of one)", usualHeartbeat.Milliseconds(), aloneHeartbeat.Milliseconds()))
	flags.UintVar(&election, "election-timeout", 0, fmt.Sprintf("Raft's election timeout in milliseconds. (default %d, %d for a cluster of one)", usualElection.Milliseconds(), aloneElection.Milliseconds()))
	flags.Int64Var(&cfg.QuotaBackendBytes, "quota-backend-bytes", 0, "How large the database may grow. (default 2 GiB)")
	flags.BoolVar(&cfg.NoSync, "unsafe-no-fsync", false, "Never wait for the disk: faster, for tests. What was written may be lost with the power, and the member with it.")
	return cmd
}
