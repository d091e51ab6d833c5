package scheduler

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestEmbedded checks that the profiles of a document reach the scheduler of a program.
func TestEmbedded(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	base := Config{InitialBackoff: 20 * time.Millisecond}
	for name, c := range map[string]struct {
		document string
		profiles int
		backoff  time.Duration
	}{
		"none":     {"", 0, 20 * time.Millisecond},
		"profiles": {head + "profiles: [{schedulerName: a}, {schedulerName: b}]\n", 2, 20 * time.Millisecond},
		"back-off": {head + "podInitialBackoffSeconds: 3\n", 0, 3 * time.Second},
	} {
		f, err := NewFlags(pflag.NewFlagSet("", pflag.ContinueOnError), []byte(c.document))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cfg, err := f.Apply(base)
		if err != nil || len(cfg.Profiles) != c.profiles || cfg.InitialBackoff != c.backoff {
			t.Errorf("%s: %+v, %v", name, cfg, err)
		}
	}
	f, err := NewFlags(pflag.NewFlagSet("", pflag.ContinueOnError), []byte(head+"profiles: [{plugins: {score: {enabled: [{name: Magic}]}}}]"))
	if err == nil {
		err = f.Validate()
	}
	if err == nil {
		t.Error("an unknown plugin is accepted")
	}
}
