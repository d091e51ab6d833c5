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
	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/internal/accepted"
	"hyperkube/internal/client"
	"hyperkube/internal/debugserver"
	"hyperkube/internal/layout"
	"hyperkube/internal/leader"
	"hyperkube/internal/logs"
	"hyperkube/internal/measure"
	"hyperkube/internal/zpages"
)

// component is the name of this component, of its lease and of who asks the API for it.
const component = "kube-scheduler"

// options are the flags of kube-scheduler.
type options struct {
	kubeconfig, config string
	serving            debugserver.Serving
	leaderElect        bool
	election           leader.Election
	format             logs.Format
	verbosity          int
}

// unused are upstream's flags for what is always so here, has no limit here, or
// does not exist here.
var unused = []accepted.Flag{
	{Name: "pod-max-in-unschedulable-pods-duration", Why: "pods wait for five minutes at most"},
	{Name: "write-config-to", Why: "the configuration is not written", Only: []string{""}},
}

// NewCommand is `kube-scheduler`.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   component,
		Short: "The scheduler: finds nodes for pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Flags().Changed, zpages.FlagsOf(cmd.Flags()))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server.")
	o.serving.AddFlags(flags, layout.PortScheduler)
	o.format.Flag(flags)
	flags.IntVarP(&o.verbosity, "v", "v", 0, "Verbosity of logs: 4 and more is debugging.")
	flags.StringVar(&o.config, "config", "", "Path of a KubeSchedulerConfiguration.")
	o.election.AddFlags(flags, &o.leaderElect, component)
	accepted.Add(flags, slices.Concat(accepted.Logging(), accepted.Metrics(), accepted.Versions(), accepted.Leading(), accepted.Client(), accepted.Serving(), unused)...)
	return cmd
}

// merge takes from a configuration what no flag says.
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

func (o *options) run(ctx context.Context, changed func(flag string) bool, flags zpages.Flags) error {
	level := new(slog.LevelVar)
	zpages.SetVerbosity(level, o.verbosity)
	log := o.format.New(os.Stderr, level)
	logs.Own(log)
	file, err := loadConfig(o.config)
	if err != nil {
		return err
	}
	o.merge(file, changed)
	profiles, err := profiles(file)
	if err != nil {
		return err
	}
	clients, err := client.FromKubeconfig(o.kubeconfig, component)
	if err != nil {
		return err
	}
	cfg := Config{Clients: clients, Profiles: profiles, Extenders: file.Extenders, Log: log}
	if v := file.PodInitialBackoffSeconds; v != nil {
		cfg.InitialBackoff = time.Duration(*v) * time.Second
	}
	if v := file.PodMaxBackoffSeconds; v != nil {
		cfg.MaxBackoff = time.Duration(*v) * time.Second
	}
	s, err := New(cfg)
	if err != nil {
		return err
	}
	conf := debugserver.Config{Flags: flags, Level: level, ConfigName: "componentconfig", Configuration: func() any { return file }}
	if o.leaderElect {
		o.election.Health = leader.NewHealth()
		conf.Live = []debugserver.Check{{Name: leader.HealthName, Check: o.election.Health.Check}}
	}
	err = o.serving.Beside(ctx, s.Server(conf), func(ctx context.Context) error {
		clients.Informers.StartWithContext(ctx)
		return o.lead(ctx, s, clients)
	})
	clients.Informers.Shutdown()
	return err
}

// lead runs s, while it holds the lease if there is an election.
func (o *options) lead(ctx context.Context, s *Scheduler, clients *client.Clients) error {
	if !o.leaderElect {
		return s.Run(ctx)
	}
	name := o.election.Defaulted(component).Name
	s.leaders.Lead(name, false)
	return leader.Run(ctx, o.election, clients.Kube, nil, func(ctx context.Context) error {
		s.leaders.Lead(name, true)
		defer s.leaders.Lead(name, false)
		return s.Run(ctx)
	})
}

// Server completes the configuration of the scheduler's secure port.
func (s *Scheduler) Server(conf debugserver.Config) debugserver.Config {
	conf.Component, conf.Metrics = component, s.Metrics()
	conf.Paths = map[string]http.Handler{"/metrics/resources": measure.Handler(s.Resources())}
	conf.Checks = []debugserver.Check{{Name: "sched-handler-sync", Check: func() error {
		if !s.Synced() {
			return errors.New("handlers are not fully synchronized")
		}
		return nil
	}}}
	return conf
}
