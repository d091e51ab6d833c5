package scheduler

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// loadConfig reads and validates the KubeSchedulerConfiguration file at path. If path is empty, it returns an empty
// configuration.
func loadConfig(path string) (*configv1.KubeSchedulerConfiguration, error) {
	if path == "" {
		return &configv1.KubeSchedulerConfiguration{}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading scheduler configuration: %w", err)
	}
	cfg, err := parseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("reading scheduler configuration: %s: %w", path, err)
	}
	return cfg, nil
}

// parseConfig decodes and validates the content of a KubeSchedulerConfiguration file. Unknown fields are an error.
func parseConfig(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	var cfg configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
		return nil, err
	}
	if cfg.Kind != "KubeSchedulerConfiguration" || cfg.APIVersion != configv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("type is %s of %s, want KubeSchedulerConfiguration of %s", cfg.Kind, cfg.APIVersion, configv1.SchemeGroupVersion)
	}
	for _, seconds := range []*int64{cfg.PodInitialBackoffSeconds, cfg.PodMaxBackoffSeconds} {
		if seconds != nil && *seconds <= 0 {
			return nil, errors.New("podInitialBackoffSeconds and podMaxBackoffSeconds must be positive")
		}
	}
	return &cfg, nil
}

// profiles converts the profiles of a configuration. Unset fields have upstream's defaults. It returns nil, which means
// the default profile, if the configuration does not affect profiles.
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
		if profile.Plugins, err = choosePlugins(args, p.Plugins); err != nil {
			return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
		}
		profiles = append(profiles, profile)
	}
	return profiles, nil
}

// ignoredByExtenders returns the resources that extenders manage with ignoredByScheduler. The NodeResourcesFit plugin
// of every profile ignores them instead of those in its arguments.
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
