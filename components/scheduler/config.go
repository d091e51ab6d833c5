package scheduler

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// loadConfig reads a KubeSchedulerConfiguration. With no path, an empty one.
func loadConfig(path string) (*configv1.KubeSchedulerConfiguration, error) {
	if path == "" {
		return &configv1.KubeSchedulerConfiguration{}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	cfg, err := parseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's configuration: %s: %w", path, err)
	}
	return cfg, nil
}

func parseConfig(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	var cfg configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
		return nil, err
	}
	if cfg.Kind != "KubeSchedulerConfiguration" || cfg.APIVersion != configv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("a %s of %s, not a KubeSchedulerConfiguration of %s", cfg.Kind, cfg.APIVersion, configv1.SchemeGroupVersion)
	}
	for _, seconds := range []*int64{cfg.PodInitialBackoffSeconds, cfg.PodMaxBackoffSeconds} {
		if seconds != nil && *seconds <= 0 {
			return nil, errors.New("the seconds of backoff must be positive")
		}
	}
	return &cfg, nil
}

// profiles makes the profiles of a configuration. What it does not say is as by
// default.
func profiles(cfg *configv1.KubeSchedulerConfiguration) ([]Profile, error) {
	var profiles []Profile
	list, ignored := cfg.Profiles, ignoredByExtenders(cfg.Extenders)
	if len(list) == 0 && len(ignored) > 0 {
		list = make([]configv1.KubeSchedulerProfile, 1)
	}
	for i := range list {
		p := &list[i]
		profile := Profile{SchedulerName: corev1.DefaultSchedulerName}
		if p.SchedulerName != nil {
			profile.SchedulerName = *p.SchedulerName
		}
		args, err := readArgs(p.PluginConfig)
		if err != nil {
			return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
		}
		if len(ignored) > 0 {
			args.Fit.Ignored = ignored
		}
		if profile.Plugins, err = choose(args, p.Plugins); err != nil {
			return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
		}
		profiles = append(profiles, profile)
	}
	return profiles, nil
}

// ignoredByExtenders are the resources that extenders alone account for: they win over
// what a profile says to ignore.
func ignoredByExtenders(extenders []configv1.Extender) map[corev1.ResourceName]bool {
	out := map[corev1.ResourceName]bool{}
	for i := range extenders {
		for _, r := range extenders[i].ManagedResources {
			if r.IgnoredByScheduler {
				out[corev1.ResourceName(r.Name)] = true
			}
		}
	}
	return out
}
