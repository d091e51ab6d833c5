package config

import (
	"testing"
	"time"
)

// TestFieldFlags sets flags of nested fields.
func TestFieldFlags(t *testing.T) {
	flags, parsed := newFlags()
	if err := parsed.Parse([]string{
		"--authentication-token-webhook=true", "--authentication-token-webhook-cache-ttl=7s", "--authorization-webhook-cache-authorized-ttl=8s",
		"--rotate-certificates", "--rotate-server-certificates", "--cgroup-driver=systemd", "--healthz-bind-address=127.0.0.2", "--read-only-port=0",
		"--sync-frequency=2m", "--fail-cgroupv1=false", "--hairpin-mode=none",
	}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Config(parsed.Changed)
	if err != nil {
		t.Fatal(err)
	}
	f := cfg.File
	if f == nil || !*f.Authentication.Webhook.Enabled || f.Authentication.Webhook.CacheTTL.Duration != 7*time.Second || f.Authorization.Webhook.CacheAuthorizedTTL.Duration != 8*time.Second {
		t.Fatalf("authentication: %+v", f)
	}
	if !f.RotateCertificates || !f.ServerTLSBootstrap || f.CgroupDriver != "systemd" || f.HealthzBindAddress != "127.0.0.2" || f.SyncFrequency.Duration != 2*time.Minute || *f.FailCgroupV1 {
		t.Errorf("%+v", f)
	}
	for _, wrong := range []string{"--cloud-provider=aws", "--lock-file=/x", "--qos-reserved=memory"} {
		if _, set := newFlags(); set.Parse([]string{wrong}) == nil {
			t.Errorf("%s was accepted", wrong)
		}
	}
}
