package scheduler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	format                                                        logs.Format
	kubeconfig, authenticationKubeconfig, authorizationKubeconfig string

	config                          string
	bindAddress                     string
	securePort                      int
	certFile, keyFile, clientCAFile string
	leaderElect                     bool
	election                        leader.Election
	verbosity                       int
	profiling                       bool
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
	flags.StringVar(&o.authenticationKubeconfig, "authentication-kubeconfig", "", "Path of the kubeconfig with which to review tokens of requests to this server.")
	flags.StringVar(&o.authorizationKubeconfig, "authorization-kubeconfig", "", "Path of the kubeconfig with which to review permissions of requests to this server.")
	flags.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "Address on which to serve the secure port.")
	flags.IntVar(&o.securePort, "secure-port", layout.PortScheduler, "Port of HTTPS with health and metrics; 0 serves none.")
	flags.StringVar(&o.certFile, "tls-cert-file", "", "Path of the serving certificate. Without one, a self-signed one is made.")
	flags.StringVar(&o.keyFile, "tls-private-key-file", "", "Path of the key of --tls-cert-file.")
	flags.StringVar(&o.clientCAFile, "client-ca-file", "", "Path of the CAs of client certificates.")
	flags.BoolVar(&o.profiling, "profiling", true, "Serve profiles, and the level of logs, to those who may.")
	o.format.Flag(flags)
	flags.IntVarP(&o.verbosity, "v", "v", 0, "Verbosity of logs: 4 and more is debugging.")
	flags.StringVar(&o.config, "config", "", "Path of a KubeSchedulerConfiguration.")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "Work only while holding the lease of the leader.")
	flags.DurationVar(&o.election.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader that is not heard of is waited for.")
	flags.DurationVar(&o.election.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew before it gives up.")
	flags.DurationVar(&o.election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "How long between two tries.")
	flags.StringVar(&o.election.Name, "leader-elect-resource-name", component, "Name of the lease.")
	flags.StringVar(&o.election.Namespace, "leader-elect-resource-namespace", metav1.NamespaceSystem, "Namespace of the lease.")
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
	profiles, err := Profiles(file)
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	if o.securePort == 0 {
		served <- nil
	} else {
		conf := debugserver.Config{Flags: flags, Level: level, ConfigName: "componentconfig", Configuration: func() any { return file }}
		if o.leaderElect {
			o.election.Health = leader.NewHealth()
			check := debugserver.Check{Name: leader.HealthName, Check: o.election.Health.Check}
			conf.Live = []debugserver.Check{check}
		}
		server, err := o.server(s, conf)
		if err != nil {
			return err
		}
		go func() {
			err := server.Run(ctx)
			if err != nil {
				cancel()
			}
			served <- err
		}()
	}
	clients.Informers.StartWithContext(ctx)
	if o.leaderElect {
		name := o.election.Defaulted(component).Name
		s.leaders.Lead(name, false)
		err = leader.Run(ctx, o.election, clients.Kube, nil, func(ctx context.Context) error {
			s.leaders.Lead(name, true)
			defer s.leaders.Lead(name, false)
			return s.Run(ctx)
		})
	} else {
		err = s.Run(ctx)
	}
	cancel()
	clients.Informers.Shutdown()
	if serveErr := <-served; serveErr != nil {
		return serveErr
	}
	return err
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

// server is what answers on the secure port.
func (o *options) server(s *Scheduler, conf debugserver.Config) (*debugserver.Server, error) {
	conf.Addr = net.JoinHostPort(o.bindAddress, strconv.Itoa(o.securePort))
	conf.CertFile, conf.KeyFile, conf.ClientCAFile, conf.NoProfiling = o.certFile, o.keyFile, o.clientCAFile, !o.profiling
	conf = s.Server(conf)
	reviewer := cmp.Or(o.authorizationKubeconfig, o.authenticationKubeconfig)
	if reviewer != "" {
		clients, err := client.FromKubeconfig(reviewer, component)
		if err != nil {
			return nil, err
		}
		conf.Reviews = clients.Kube
	}
	return debugserver.New(conf)
}
