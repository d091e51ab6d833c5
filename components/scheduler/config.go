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

// Profiles makes the profiles of a configuration. What it does not say is as by
// default.
func Profiles(cfg *configv1.KubeSchedulerConfiguration) ([]Profile, error) {
	var profiles []Profile
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		profile := Profile{SchedulerName: corev1.DefaultSchedulerName}
		if p.SchedulerName != nil {
			profile.SchedulerName = *p.SchedulerName
		}
		args, err := readArgs(p.PluginConfig)
		if err != nil {
			return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
		}
		if profile.Plugins, err = choose(args, p.Plugins); err != nil {
			return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
		}
		profiles = append(profiles, profile)
	}
	return profiles, nil
}
