package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/componentmetrics"
	"hyperkube/internal/serving/debugserver"
	"hyperkube/internal/serving/zpages"
)

// component is the name of this component. It is also the name of its lease and part of its user agent.
const component = "kube-scheduler"

// options are the flags of kube-scheduler.
type options struct {
	kubeconfig, config string
	serving            debugserver.SecurePortFlags
	leaderElect        bool
	election           leaderelection.Election
	format             logging.Format
	verbosity          int
	tracingFile        string
}

// unused are upstream's flags that are accepted without effect, because what they configure is fixed or does not exist
// here.
var unused = []compatflags.Flag{
	{Name: "pod-max-in-unschedulable-pods-duration", Why: "unschedulable pods are retried after five minutes"},
	{Name: "write-config-to", Why: "writing the configuration is not supported", Only: []string{""}},
}

// NewCommand returns the kube-scheduler command, which runs the scheduler as a separate process with upstream's flags.
// `hyperkube up` runs the scheduler without this command.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   component,
		Short: "Run the scheduler, which assigns pods to nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Flags().Changed, zpages.FlagsOf(cmd.Flags()))
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

// flags adds the flags of the scheduler to a set of flags. Parsing them sets the fields of o.
func (o *options) flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file with the location and credentials of the API server.")
	o.serving.AddFlags(flags, layout.PortScheduler)
	o.format.Flag(flags)
	flags.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity: 4 or more enables debug logs.")
	flags.StringVar(&o.config, "config", "", "Path to a KubeSchedulerConfiguration file.")
	o.election.AddFlags(flags, &o.leaderElect, component)
	tracing.AddFileFlag(flags, &o.tracingFile)
	compatflags.Add(flags, slices.Concat(compatflags.Logging(), compatflags.Metrics(), compatflags.Versions(), compatflags.LeaderElection(), compatflags.Client(), compatflags.Serving(), unused)...)
}

// merge sets the options that the configuration file cfg contains. Flags on the command line take precedence; changed
// reports whether a flag is set.
func (o *options) merge(cfg *configv1.KubeSchedulerConfiguration, changed func(flag string) bool) {
	if o.kubeconfig == "" {
		o.kubeconfig = cfg.ClientConnection.Kubeconfig
	}
	le := &cfg.LeaderElection
	if le.LeaderElect != nil && !changed("leader-elect") {
		o.leaderElect = *le.LeaderElect
	}
	for _, d := range []struct {
		flag string
		to   *time.Duration
		from time.Duration
	}{
		{"leader-elect-lease-duration", &o.election.LeaseDuration, le.LeaseDuration.Duration},
		{"leader-elect-renew-deadline", &o.election.RenewDeadline, le.RenewDeadline.Duration},
		{"leader-elect-retry-period", &o.election.RetryPeriod, le.RetryPeriod.Duration},
	} {
		if d.from != 0 && !changed(d.flag) {
			*d.to = d.from
		}
	}
	if le.ResourceName != "" && !changed("leader-elect-resource-name") {
		o.election.Name = le.ResourceName
	}
	if le.ResourceNamespace != "" && !changed("leader-elect-resource-namespace") {
		o.election.Namespace = le.ResourceNamespace
	}
}

// run runs the scheduler and its secure port until ctx is done or the lease is lost. changed reports whether a flag is
// set.
func (o *options) run(ctx context.Context, changed func(flag string) bool, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logging.SetDefault(log)
	file, err := loadConfig(o.config)
	if err != nil {
		return err
	}
	o.merge(file, changed)
	clients, err := client.FromKubeconfig(o.kubeconfig, component)
	if err != nil {
		return err
	}
	cfg, err := applyFile(Config{Clients: clients, Log: log}, file)
	if err != nil {
		return err
	}
	if cfg.Tracing, err = tracing.ReadFile(o.tracingFile); err != nil {
		return err
	}
	s, err := New(cfg)
	if err != nil {
		return err
	}
	conf := debugserver.Config{Flags: flags, Level: level, ConfigName: "componentconfig", Configuration: func() any { return file }}
	if o.leaderElect {
		o.election.Health = leaderelection.NewHealth()
		conf.Live = []debugserver.Check{{Name: leaderelection.HealthName, Check: o.election.Health.Check}}
	}
	if path := o.serving.ReviewKubeconfig(); path != "" {
		reviewer, err := client.FromKubeconfig(path, component)
		if err != nil {
			return err
		}
		conf.Reviews = reviewer.Kube
	}
	err = o.serving.RunWith(ctx, s.Server(conf), func(ctx context.Context) error {
		clients.Informers.StartWithContext(ctx)
		return o.lead(ctx, s, clients)
	})
	clients.Informers.Shutdown()
	return err
}

// lead runs the scheduler s until ctx is done. With leader election, it waits for the lease first and returns an error
// when the lease is lost.
func (o *options) lead(ctx context.Context, s *Scheduler, clients *client.Clients) error {
	if !o.leaderElect {
		return s.Run(ctx)
	}
	name := o.election.WithDefaults(component).Name
	s.leaders.SetLeader(name, false)
	return leaderelection.Run(ctx, o.election, clients.Kube, nil, func(ctx context.Context) error {
		s.leaders.SetLeader(name, true)
		defer s.leaders.SetLeader(name, false)
		return s.Run(ctx)
	})
}

// Server adds the scheduler's name, metrics and readiness check to conf, the configuration of the secure port.
func (s *Scheduler) Server(conf debugserver.Config) debugserver.Config {
	conf.Component, conf.Metrics = component, s.Metrics()
	conf.Paths = map[string]http.Handler{"/metrics/resources": componentmetrics.Handler(s.Resources())}
	conf.Checks = []debugserver.Check{{Name: "sched-handler-sync", Check: func() error {
		if !s.Synced() {
			return errors.New("handlers are not fully synchronized")
		}
		return nil
	}}}
	return conf
}
