package etcd

import (
	"testing"

	"github.com/spf13/pflag"
)

// TestEmbedded checks which fields the flags change in the configuration of a program.
func TestEmbedded(t *testing.T) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f := NewFlags(set)
	if err := set.Parse([]string{"--quota-backend-bytes=7", "--snapshot-count=9", "--listen-metrics-urls=http://127.0.0.1:2381", "--log-level=debug"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	base := Config{DataDir: "/d", Name: "n", ListenClientURLs: []string{"https://127.0.0.1:2379"}, ClientTLS: TLS{CertFile: "/c", KeyFile: "/k"}}
	cfg, err := f.Apply(base)
	if err != nil || cfg.DataDir != "/d" || cfg.Name != "n" || cfg.ListenClientURLs[0] != base.ListenClientURLs[0] || cfg.ClientTLS != base.ClientTLS || cfg.Log != nil ||
		cfg.QuotaBackendBytes != 7 || cfg.SnapshotCount != 9 || len(cfg.ListenMetricsURLs) != 1 || cfg.LogLevel != "debug" || cfg.HeartbeatInterval != 0 || cfg.InitialClusterState != "" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if err := set.Set("metrics", "all"); err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(); err == nil {
		t.Error("an unknown level of metrics is accepted")
	}
}
