package etcd

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"hyperkube/internal/testing/testwait"
)

// TestConfigFile checks that a configuration file of etcd sets what the flags set, and that flags on
// the command line are ignored then.
func TestConfigFile(t *testing.T) {
	read := func(text string, args ...string) (Config, error) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "etcd.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var o options
		cmd := NewCommand()
		o.addFlags(cmd.PersistentFlags())
		if err := cmd.PersistentFlags().Parse(args); err != nil {
			t.Fatal(err)
		}
		o.file = file
		return o.config(&bytes.Buffer{})
	}
	cfg, err := read(`
# A file as in the documentation of etcd.
name: infra0
data-dir: /var/lib/etcd
quota-backend-bytes: 9007199254740993
heartbeat-interval: 200
listen-client-urls: https://127.0.0.1:1,https://127.0.0.2:1
listen-peer-urls: https://127.0.0.1:2
client-transport-security:
  cert-file: c.crt
  key-file: c.key
  client-cert-auth: true
  trusted-ca-file: ca.crt
  auto-tls: false
peer-transport-security:
  cert-file: p.crt
  key-file: p.key
discovery:
enable-pprof: false
auto-compaction-mode: revision
auto-compaction-retention: "1000"
max-request-bytes: 33554432
force-new-cluster: true
metrics: extensive
log-level: debug
logger: zap
`, "--name=other", "--snapshot-count=7")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Name != "infra0" || cfg.SnapshotCount != defaultSnapshotCount || cfg.QuotaBackendBytes != 9007199254740993 || cfg.HeartbeatInterval != 200*time.Millisecond ||
		len(cfg.ListenClientURLs) != 2 || cfg.ClientTLS != (TLS{"c.crt", "c.key", "ca.crt", true}) || cfg.PeerTLS != (TLS{CertFile: "p.crt", KeyFile: "p.key"}) {
		t.Errorf("the configuration is %+v", cfg)
	}
	out, err := cfg.embed(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if out.AutoCompactionMode != "revision" || out.AutoCompactionRetention != "1000" || out.MaxRequestBytes != 32<<20 || !out.ForceNewCluster || out.Metrics != "extensive" {
		t.Errorf("etcd's configuration is %+v", out)
	}
	for text, want := range map[string]string{
		"discovery: https://discovery.example": `setting "discovery" is not supported`,
		"snapshot-count: many":                 "invalid syntax",
		"client-transport-security: yes":       "is not a section",
		"peer-transport-security: {odd: 1}":    `setting "peer-odd" is not supported`,
		"name: [":                              "reading the configuration file",
		"logger: capnslog":                     "only zap",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestForceNewCluster checks that a member starts alone with its data after the majority of the
// members is lost.
func TestForceNewCluster(t *testing.T) {
	urls := freeURLs(t, "http", 4)
	first := Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Name: "a", ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:2],
		HeartbeatInterval: defaultHeartbeat, ElectionTimeout: defaultElection,
	}
	a, stopA := start(t, first)
	// Without a second member, which then has no quorum, the leader cannot decide the version that the second member requires.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testwait.Succeed(t, "the version of the cluster", func() error {
		resp, err := client.Get(urls[1] + "/version")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && strings.Contains(string(text), "not_decided") {
			err = fmt.Errorf("not decided: %s", text)
		}
		return err
	})
	if _, err := a.Client().MemberAdd(t.Context(), urls[3:]); err != nil {
		t.Fatal(err)
	}
	cluster := "a=" + urls[1] + ",b=" + urls[3]
	b, stopB := start(t, Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Name: "b", ListenClientURLs: urls[2:3], ListenPeerURLs: urls[3:],
		InitialCluster: cluster, InitialClusterState: "existing",
	})
	if _, err := b.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	stopB()
	stopA()

	first.InitialCluster, first.ForceNewCluster = cluster, true
	a, stopA = start(t, first)
	defer stopA()
	got, err := a.Client().Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("the key is %v, %v", got, err)
	}
	if members, err := a.Client().MemberList(t.Context()); err != nil || len(members.Members) != 1 {
		t.Errorf("the members are %v, %v", members, err)
	}
}

// TestLogLevel checks that --log-level selects the messages of etcd that are written.
func TestLogLevel(t *testing.T) {
	for level, want := range map[string]bool{"info": true, "warn": false} {
		var out bytes.Buffer
		var o options
		o.addFlags(NewCommand().PersistentFlags())
		o.cfg.LogLevel = level
		cfg, err := o.config(&out)
		if err != nil {
			t.Fatal(err)
		}
		urls := freeURLs(t, "http", 2)
		cfg.DataDir, cfg.ListenClientURLs, cfg.ListenPeerURLs = filepath.Join(t.TempDir(), "data"), urls[:1], urls[1:]
		_, stop := start(t, cfg)
		stop()
		if got := strings.Contains(out.String(), "level=INFO"); got != want {
			t.Errorf("with --log-level=%s the log is\n%s", level, out.String())
		}
	}
}
