package scheduler

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/scheduler/plugins"
	"hyperkube/internal/client"
)

// options are the flags of kube-scheduler.
type options struct {
	kubeconfig  string
	config      string
	leaderElect bool
	lease       time.Duration
	renew       time.Duration
	retry       time.Duration
	name        string
	namespace   string
}

// NewCommand is `kube-scheduler`.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "kube-scheduler",
		Short: "The scheduler: finds nodes for pods",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig with which to reach the API server.")
	flags.StringVar(&o.config, "config", "", "Path of a KubeSchedulerConfiguration.")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "Work only while holding the lease of the leader.")
	flags.DurationVar(&o.lease, "leader-elect-lease-duration", 15*time.Second, "How long a leader that is not heard of is waited for.")
	flags.DurationVar(&o.renew, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew before it gives up.")
	flags.DurationVar(&o.retry, "leader-elect-retry-period", 2*time.Second, "How long between two tries.")
	flags.StringVar(&o.name, "leader-elect-resource-name", "kube-scheduler", "Name of the lease.")
	flags.StringVar(&o.namespace, "leader-elect-resource-namespace", metav1.NamespaceSystem, "Namespace of the lease.")
	return cmd
}

func (o *options) run(ctx context.Context) error {
	profiles, kubeconfig, err := loadConfig(o.config)
	if err != nil {
		return err
	}
	if o.kubeconfig != "" {
		kubeconfig = o.kubeconfig
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	rest.UserAgent = "kube-scheduler"
	clients, err := client.New(client.Config{REST: rest})
	if err != nil {
		return err
	}
	s, err := New(Config{Clients: clients, Profiles: profiles})
	if err != nil {
		return err
	}
	clients.Informers.Start(ctx.Done())
	if !o.leaderElect {
		return s.Run(ctx)
	}
	return lead(ctx, o, clients, s)
}

// lead runs s while it is the leader, and fails when it no longer is.
func lead(ctx context.Context, o *options, clients *client.Clients, s *Scheduler) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("asking for the hostname: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, o.namespace, o.name,
		clients.Kube.CoreV1(), clients.Kube.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s_%d", hostname, os.Getpid())})
	if err != nil {
		return fmt.Errorf("preparing leader election: %w", err)
	}
	electing, cancel := context.WithCancel(ctx)
	defer cancel()
	leading := make(chan struct{})
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: o.lease, RenewDeadline: o.renew, RetryPeriod: o.retry,
		ReleaseOnCancel: true, Name: o.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(leading)
				ended <- s.Run(ctx)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing leader election: %w", err)
	}
	elector.Run(electing)
	select {
	case <-leading:
		if err := <-ended; err != nil {
			return err
		}
	default:
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("lost the lease %s/%s", o.namespace, o.name)
}

// loadConfig reads a KubeSchedulerConfiguration: its profiles and kubeconfig.
// With no path, the default.
func loadConfig(path string) ([]Profile, string, error) {
	if path == "" {
		return nil, "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	var cfg configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
		return nil, "", fmt.Errorf("reading the scheduler's configuration: %s: %w", path, err)
	}
	if cfg.Kind != "KubeSchedulerConfiguration" || cfg.APIVersion != configv1.SchemeGroupVersion.String() {
		return nil, "", fmt.Errorf("%s is a %s of %s, not a KubeSchedulerConfiguration of %s", path, cfg.Kind, cfg.APIVersion, configv1.SchemeGroupVersion)
	}
	var profiles []Profile
	for _, p := range cfg.Profiles {
		profile := Profile{SchedulerName: "default-scheduler", Plugins: plugins.Default()}
		if p.SchedulerName != nil {
			profile.SchedulerName = *p.SchedulerName
		}
		if p.Plugins != nil {
			profile.Plugins = choose(profile.Plugins, p.Plugins)
		}
		profiles = append(profiles, profile)
	}
	return profiles, cfg.ClientConnection.Kubeconfig, nil
}

// choose applies what a profile enables and disables.
func choose(set plugins.Set, p *configv1.Plugins) plugins.Set {
	set = set.Without(names(p.MultiPoint.Disabled)...)
	set.PreEnqueue = set.Without(names(p.PreEnqueue.Disabled)...).PreEnqueue
	set.Filter = set.Without(names(p.Filter.Disabled)...).Filter
	set.Score = set.Without(names(p.Score.Disabled)...).Score
	for _, enabled := range append(p.MultiPoint.Enabled, p.Score.Enabled...) {
		for i := range set.Score {
			if set.Score[i].Name() == enabled.Name && enabled.Weight != nil {
				set.Score[i].Weight = int64(*enabled.Weight)
			}
		}
	}
	return set
}

func names(list []configv1.Plugin) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = p.Name
	}
	return out
}
