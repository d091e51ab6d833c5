package scheduler

import (
	"time"

	"github.com/spf13/pflag"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/internal/base/tracing"
	"hyperkube/internal/serving/debugserver"
)

// Flags are flags of kube-scheduler and a KubeSchedulerConfiguration that change the configuration of a scheduler in the process of
// another program. That program determines the clients, leader election and the log, so it must refuse the flags for these.
type Flags struct {
	options options
	set     *pflag.FlagSet
	file    *configv1.KubeSchedulerConfiguration
}

// NewFlags adds the flags of kube-scheduler to set, which the caller parses. document is a KubeSchedulerConfiguration in YAML or
// JSON; it may be empty.
func NewFlags(set *pflag.FlagSet, document []byte) (*Flags, error) {
	f := &Flags{set: set, file: &configv1.KubeSchedulerConfiguration{}}
	f.options.flags(set)
	if len(document) > 0 {
		var err error
		if f.file, err = parseConfig(document); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Validate reports invalid values.
func (f *Flags) Validate() error {
	if _, err := profiles(f.file); err != nil {
		return err
	}
	if _, err := tracing.ReadFile(f.options.tracingFile); err != nil {
		return err
	}
	return f.options.serving.Validate()
}

// Apply returns base with the settings of the document and the flags.
func (f *Flags) Apply(base Config) (Config, error) {
	cfg, err := applyFile(base, f.file)
	if err != nil || !f.set.Changed(tracing.FileFlag) {
		return cfg, err
	}
	cfg.Tracing, err = tracing.ReadFile(f.options.tracingFile)
	return cfg, err
}

// applyFile returns cfg with the settings of file that configure scheduling.
func applyFile(cfg Config, file *configv1.KubeSchedulerConfiguration) (Config, error) {
	var err error
	if cfg.Profiles, err = profiles(file); err != nil {
		return cfg, err
	}
	cfg.Extenders = file.Extenders
	if v := file.PodInitialBackoffSeconds; v != nil {
		cfg.InitialBackoff = time.Duration(*v) * time.Second
	}
	if v := file.PodMaxBackoffSeconds; v != nil {
		cfg.MaxBackoff = time.Duration(*v) * time.Second
	}
	return cfg, nil
}

// ApplyServing applies the flags of the secure port to conf. It returns false if the port is not served.
func (f *Flags) ApplyServing(conf *debugserver.Config) bool {
	conf.ConfigName, conf.Configuration = "componentconfig", func() any { return f.file }
	return f.options.serving.Apply(f.set.Changed, conf)
}
