package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/node/kubeletcerts"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/serving/zpages"
)

// NewCommand returns the command `hyperkube kubelet`, which runs only a kubelet in this process.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "kubelet",
		Short:        "Run the node agent that runs the pods bound to this node",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
	}
	flags := &config.Flags{}
	flags.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return run(cmd.Context(), flags, cmd.Flags())
	}
	return cmd
}

// setUpCertificates requests the certificates of the kubelet from the API server and starts their renewal in
// group: the client certificate if a bootstrap kubeconfig or rotateCertificates is configured, and the serving
// certificate if serverTLSBootstrap is and no certificate files are. It waits for the client certificate,
// because the kubelet cannot reach the API server without it. cfg gets the serving certificate, and deps the
// metrics of both. Without a kubeconfig it does nothing.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
func setUpCertificates(ctx context.Context, flags *config.Flags, cfg *config.Config, deps *Dependencies, group *lifecycle.Group) error {
	if flags.Kubeconfig == "" {
		return nil
	}
	where := kubeletcerts.Config{NodeName: cfg.NodeName, Dir: flags.CertDir, Kubeconfig: flags.Kubeconfig, Bootstrap: flags.Bootstrap}
	if where.Dir == "" {
		where.Dir = filepath.Join(cfg.Layout.Kubelet, "pki")
	}
	background := context.WithoutCancel(ctx)
	if flags.Bootstrap != "" || cfg.File != nil && cfg.File.RotateCertificates {
		keeper, err := kubeletcerts.NewClient(where)
		if err != nil {
			return err
		}
		deps.Metrics = append(deps.Metrics, keeper)
		group.Start(background, "client certificate", keeper)
		if err := group.WaitReady(ctx, "the client certificate", keeper.Ready()); err != nil {
			return err
		}
	}
	if cfg.Server.Certificate != nil || cfg.File == nil || !cfg.File.ServerTLSBootstrap {
		return nil
	}
	ips, err := nodestatus.Addresses(cfg.Node.IPs)
	if err != nil {
		return err
	}
	names := []string{cfg.NodeName}
	for _, ip := range ips {
		names = append(names, ip.String())
	}
	keeper, err := kubeletcerts.NewServing(where, func() []string { return names })
	if err != nil {
		return err
	}
	group.Start(background, "serving certificate", keeper)
	cfg.Server.Certificate, cfg.Server.CertificateHasMetrics = keeper.Certificate, true
	deps.Metrics = append(deps.Metrics, keeper)
	return nil
}

// run runs the kubelet of the command until ctx is done. set is the parsed flag set of the command: only flags that
// were given on the command line override the configuration files.
func run(ctx context.Context, flags *config.Flags, set *pflag.FlagSet) (err error) {
	cfg, err := flags.Config(set.Changed)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	if flags.Verbosity >= 2 || cfg.File != nil && cfg.File.Logging.Verbosity >= 2 {
		level.Set(slog.LevelDebug)
	}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if cfg.File != nil && cfg.File.Logging.Format == "json" {
		handler = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	deps := Dependencies{Flags: zpages.FlagsOf(set), Level: level, Log: slog.New(handler)}
	logging.SetDefault(deps.Log)
	group := &lifecycle.Group{Log: deps.Log}
	defer func() { err = errors.Join(err, group.Stop()) }()
	if err := setUpCertificates(ctx, flags, &cfg, &deps, group); err != nil {
		return err
	}
	if flags.Kubeconfig != "" {
		rest, err := clientcmd.BuildConfigFromFlags("", flags.Kubeconfig)
		if err != nil {
			return fmt.Errorf("reading kubeconfig: %w", err)
		}
		rest.UserAgent = "kubelet"
		if n := cfg.Effective(); n.KubeAPIQPS != nil {
			rest.QPS, rest.Burst = float32(*n.KubeAPIQPS), int(n.KubeAPIBurst)
		}
		if deps.Clients, err = client.New(client.Config{REST: rest}); err != nil {
			return err
		}
	}
	journal, err := hostjournal.Open(cfg.Layout.Journal("node"))
	if err != nil {
		return err
	}
	defer journal.Close()
	deps.Journal = journal
	k, err := New(cfg, deps)
	if err != nil {
		return err
	}
	if text, err := k.cfg.EffectiveText(); err == nil {
		deps.Log.Info("effective kubelet configuration", "config", text)
	} else {
		deps.Log.Warn("effective kubelet configuration cannot be encoded and is not logged, the kubelet is not affected: see /configz of the kubelet", "err", err)
	}
	return k.Run(ctx)
}
