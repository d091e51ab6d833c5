package etcd

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
)

// NewCommand returns the `hyperkube etcd` command, which runs a member as a separate process. It
// has the flags of etcd that Kubernetes installers use.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Run an etcd member",
		Long: "Run an etcd member. The flags are those of etcd that Kubernetes needs. Without flags it is a\n" +
			"single-member cluster that only this machine can reach.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.config(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			server, err := New(cfg)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.file, "config-file", "", "Path to the server configuration file. If it is set, the other flags are ignored.")
	return cmd
}

// options are the values of the flags of `hyperkube etcd`. Those that config converts before they become part of the
// Config have their own fields.
type options struct {
	cfg                 Config
	heartbeat, election uint // in milliseconds
	logger              string
	file                string
}

// addFlags adds all flags of `hyperkube etcd` except for --config-file to flags. Their values are stored in o.
func (o *options) addFlags(flags *pflag.FlagSet) {
	cfg := &o.cfg
	flags.StringVar(&cfg.DataDir, "data-dir", "default.etcd", "Path to the data directory.")
	flags.StringVar(&cfg.Name, "name", defaultName, "Human-readable name for this member.")
	flags.StringSliceVar(&cfg.ListenClientURLs, "listen-client-urls", nil, fmt.Sprintf("List of URLs to listen on for client traffic. (default %s)", local(TLS{}, 2379)))
	flags.StringSliceVar(&cfg.ListenClientHTTPURLs, "listen-client-http-urls", nil, "List of URLs to serve HTTP clients on (/health, /metrics, /version). The client URLs then serve gRPC only, which halves their CPU usage.")
	flags.StringSliceVar(&cfg.AdvertiseClientURLs, "advertise-client-urls", nil, "List of this member's client URLs to advertise to clients. (default: the listen URLs)")
	flags.StringSliceVar(&cfg.ListenPeerURLs, "listen-peer-urls", nil, fmt.Sprintf("List of URLs to listen on for peer traffic. (default %s)", local(TLS{}, 2380)))
	flags.StringSliceVar(&cfg.AdvertisePeerURLs, "initial-advertise-peer-urls", nil, "List of this member's peer URLs to advertise to the rest of the cluster. (default: the listen URLs)")
	flags.StringSliceVar(&cfg.ListenMetricsURLs, "listen-metrics-urls", nil, "List of additional URLs to serve /metrics and /health on.")
	flags.StringVar(&cfg.InitialCluster, "initial-cluster", "", "Initial cluster configuration for bootstrapping, as name=URL,… (default: this member only)")
	flags.StringVar(&cfg.InitialClusterState, "initial-cluster-state", "new", "Initial cluster state: 'new', or 'existing' to join a cluster.")
	flags.StringVar(&cfg.InitialClusterToken, "initial-cluster-token", "etcd-cluster", "Initial cluster token for the etcd cluster during bootstrap.")
	flags.StringVar(&cfg.ClientTLS.CertFile, "cert-file", "", "Path to the client server TLS cert file.")
	flags.StringVar(&cfg.ClientTLS.KeyFile, "key-file", "", "Path to the client server TLS key file.")
	flags.StringVar(&cfg.ClientTLS.TrustedCAFile, "trusted-ca-file", "", "Path to the client server TLS trusted CA cert file.")
	flags.BoolVar(&cfg.ClientTLS.ClientCertAuth, "client-cert-auth", false, "Enable client cert authentication.")
	flags.StringVar(&cfg.PeerTLS.CertFile, "peer-cert-file", "", "Path to the peer server TLS cert file.")
	flags.StringVar(&cfg.PeerTLS.KeyFile, "peer-key-file", "", "Path to the peer server TLS key file.")
	flags.StringVar(&cfg.PeerTLS.TrustedCAFile, "peer-trusted-ca-file", "", "Path to the peer server TLS trusted CA file.")
	flags.BoolVar(&cfg.PeerTLS.ClientCertAuth, "peer-client-cert-auth", false, "Enable peer client cert authentication.")
	flags.Uint64Var(&cfg.SnapshotCount, "snapshot-count", defaultSnapshotCount, "Number of committed transactions to trigger a snapshot to disk.")
	flags.UintVar(&o.heartbeat, "heartbeat-interval", 0, fmt.Sprintf("Time (in milliseconds) of a heartbeat interval. (default %d, %d for a single-member cluster)", defaultHeartbeat.Milliseconds(), singleHeartbeat.Milliseconds()))
	flags.UintVar(&o.election, "election-timeout", 0, fmt.Sprintf("Time (in milliseconds) for an election to timeout. (default %d, %d for a single-member cluster)", defaultElection.Milliseconds(), singleElection.Milliseconds()))
	flags.Int64Var(&cfg.QuotaBackendBytes, "quota-backend-bytes", 0, "Maximum size of the database in bytes. (default 2 GiB)")
	flags.StringVar(&cfg.AutoCompactionMode, "auto-compaction-mode", "periodic", "Interpret 'auto-compaction-retention' as 'periodic' (a duration) or 'revision' (a number of revisions).")
	flags.StringVar(&cfg.AutoCompactionRetention, "auto-compaction-retention", "0", "Auto compaction retention: a duration, in hours without a unit, or a number of revisions. 0 disables auto compaction. kube-apiserver compacts by itself.")
	flags.UintVar(&cfg.MaxRequestBytes, "max-request-bytes", embed.DefaultMaxRequestBytes, "Maximum client request size in bytes the server will accept.")
	flags.BoolVar(&cfg.ForceNewCluster, "force-new-cluster", false, "Force to create a new one-member cluster from the data directory, after a permanent loss of the majority of members.")
	flags.StringVar(&cfg.Metrics, "metrics", "basic", "Level of detail for exported metrics: 'basic', or 'extensive' to include histograms of gRPC calls.")
	flags.StringVar(&o.logger, "logger", "zap", "Accepted for compatibility: only 'zap'. Logs are written as text to standard error.")
	flags.StringVar(&cfg.LogLevel, "log-level", "warn", "Log level: debug, info, warn, error, panic or fatal.")
	flags.BoolVar(&cfg.NoSync, "unsafe-no-fsync", false, "Disable fsync: faster, for tests. A power failure may lose data or corrupt the member.")
}

// config returns the configuration that the flags specify, or the configuration file if --config-file is set; the
// flags are ignored then. Logs are written to out. It returns an error if the file cannot be read or is invalid, or
// if --logger is not zap; New checks the other values.
func (o *options) config(out io.Writer) (Config, error) {
	if o.file != "" {
		fromFile, err := readConfigFile(o.file)
		if err != nil {
			return Config{}, err
		}
		return fromFile.config(out)
	}
	if o.logger != "zap" {
		return Config{}, fmt.Errorf("--logger %q is not supported: only zap is", o.logger)
	}
	cfg := o.cfg
	cfg.HeartbeatInterval = time.Duration(o.heartbeat) * time.Millisecond
	cfg.ElectionTimeout = time.Duration(o.election) * time.Millisecond
	level := slog.LevelInfo
	switch cfg.LogLevel {
	case "debug":
		level = slog.LevelDebug
	case "error", "panic", "fatal":
		level = slog.LevelError
	}
	cfg.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	return cfg, nil
}
