package compose

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"hyperkube/internal/pki"
)

// TestFlags holds that what the flags say reaches the server.
func TestFlags(t *testing.T) {
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) (Config, error) {
		t.Helper()
		cmd := NewCommand()
		var o options
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.flags(flags)
		o.limits.flags(flags)
		o.audit.Flags(flags)
		flags.VisitAll(func(f *pflag.Flag) {
			if cmd.Flags().Lookup(f.Name) == nil {
				t.Errorf("the command has no flag --%s", f.Name)
			}
		})
		if err := flags.Parse(append([]string{
			"--service-account-signing-key-file=" + set.ServiceAccountKeyFile, "--service-cluster-ip-range=10.96.0.0/16",
			"--advertise-address=192.0.2.1", "--service-account-issuer=https://issuer",
		}, args...)); err != nil {
			t.Fatal(err)
		}
		return o.config(t.Context(), slog.New(slog.DiscardHandler))
	}
	cfg, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if reading, mutating := cfg.InFlight.orDefault(); cfg.InFlight.NoFairness || reading != 400 || mutating != 200 || cfg.Limits.Request != time.Minute {
		t.Errorf("without flags: %+v %+v", cfg.InFlight, cfg.Limits)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	cfg, err = read("--enable-priority-and-fairness=false", "--max-requests-inflight=7", "--max-mutating-requests-inflight=0", "--request-timeout=9s",
		"--min-request-timeout=60", "--shutdown-delay-duration=3s", "--livez-grace-period=4s", "--http2-max-streams-per-connection=5",
		"--cors-allowed-origins=//example[.]com$", "--audit-policy-file="+policy, "--audit-log-path=-", "--event-ttl=2h")
	if err != nil {
		t.Fatal(err)
	}
	if reading, mutating := cfg.InFlight.orDefault(); !cfg.InFlight.NoFairness || reading != 7 || mutating != 0 {
		t.Errorf("in flight: %+v", cfg.InFlight)
	}
	if l := cfg.Limits; l.Request != 9*time.Second || l.Watch != time.Minute || l.ShutdownDelay != 3*time.Second || l.LivezGrace != 4*time.Second || l.Streams != 5 || len(l.Guard.Origins) != 1 {
		t.Errorf("limits: %+v", l)
	}
	if cfg.Audit.PolicyFile != policy || cfg.EventTTL != 2*time.Hour {
		t.Errorf("audit %+v, events %v", cfg.Audit, cfg.EventTTL)
	}
	if _, err := read("--goaway-chance=0.5"); err == nil {
		t.Error("a chance of one half is taken")
	}
}
