package compose

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/hostaddress"
	"hyperkube/internal/testing/testnetns"
)

// TestFlags checks that flag values reach the server configuration.
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
		o.more.flags(flags)
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
	if len(cfg.Limits.Guard.Origins) > 0 || cfg.TLS.MinVersion != 0 || cfg.TLS.CipherSuites != nil {
		t.Errorf("without flags: other origins %v, %+v", cfg.Limits.Guard.Origins, cfg.TLS)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	cfg, err = read("--enable-priority-and-fairness=false", "--max-requests-inflight=7", "--max-mutating-requests-inflight=0", "--request-timeout=9s",
		"--min-request-timeout=60", "--shutdown-delay-duration=3s", "--livez-grace-period=4s", "--http2-max-streams-per-connection=5",
		"--disable-http2-serving", "--max-connection-bytes-per-sec=1000", "--external-hostname=api.example.com",
		"--cors-allowed-origins=//example[.]com$", "--audit-policy-file="+policy, "--audit-log-path=-", "--event-ttl=2h")
	if err != nil {
		t.Fatal(err)
	}
	if reading, mutating := cfg.InFlight.orDefault(); !cfg.InFlight.NoFairness || reading != 7 || mutating != 0 {
		t.Errorf("in flight: %+v", cfg.InFlight)
	}
	if l := cfg.Limits; l.Request != 9*time.Second || l.Watch != time.Minute || l.ShutdownDelay != 3*time.Second || l.LivezGrace != 4*time.Second || l.Streams != 5 || l.StreamBytes != 1000 || len(l.Guard.Origins) != 1 {
		t.Errorf("limits: %+v", l)
	}
	if !cfg.TLS.NoHTTP2 || cfg.external() != net.JoinHostPort("api.example.com", strconv.Itoa(int(cfg.Advertise.Port()))) {
		t.Errorf("HTTP/2 %v, external %s", !cfg.TLS.NoHTTP2, cfg.external())
	}
	if cfg.Audit.PolicyFile != policy || cfg.EventTTL != 2*time.Hour {
		t.Errorf("audit %+v, events %v", cfg.Audit, cfg.EventTTL)
	}
	cfg, err = read("--etcd-compaction-interval=0", "--endpoint-reconciler-type=none", "--default-not-ready-toleration-seconds=7",
		"--kubernetes-service-node-port=30443", "--runtime-config=api/all=true,batch/v1=false,apps/v1/deployments=false", "--watch-cache",
		"--v=2", "--logging-format=text", "--feature-gates=ContextualLogging=true,MemoryQoS=false", "--default-watch-cache-size=5")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.CompactionInterval >= 0 || !cfg.NoEndpoints || cfg.TolerationSeconds.NotReady != 7 || cfg.TolerationSeconds.Unreachable != 300 || cfg.ServiceNodePort != 30443 {
		t.Errorf("got %+v", cfg)
	}
	cfg, err = read("--tls-min-version=VersionTLS13", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
	if err != nil || cfg.TLS.MinVersion != tls.VersionTLS13 || !slices.Equal(cfg.TLS.CipherSuites, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}) {
		t.Errorf("TLS %+v, %v", cfg.TLS, err)
	}
	if cfg, err = read("--runtime-config=api/all=true,batch/v1=false,apps/v1/deployments=false"); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"batch/v1/jobs": true, "apps/v1/deployments": true, "apps/v1/daemonsets": false} {
		part := strings.Split(text, "/")
		if got := cfg.Disabled(schema.GroupVersionResource{Group: part[0], Version: part[1], Resource: part[2]}); got != want {
			t.Errorf("%s is left out: %v", text, got)
		}
	}
	for _, fine := range []string{"--runtime-config=api/beta=false,api/alpha=false", "--runtime-config=resource.k8s.io/v1beta1=false", "--runtime-config=batch/v1=true,apps/v1/deployments=true,v1=true"} {
		if _, err := read(fine); err != nil {
			t.Errorf("%s: %v", fine, err)
		}
	}
	for _, wrong := range []string{"--goaway-chance=0.5", "--endpoint-reconciler-type=master-count", "--endpoint-reconciler-type=x",
		"--default-not-ready-toleration-seconds=-1", "--kubernetes-service-node-port=70000", "--tls-min-version=VersionTLS9", "--tls-cipher-suites=NONE",
		"--tracing-config-file=/missing", "--runtime-config=v1=false", "--runtime-config=api/all=false", "--runtime-config=batch/v1=maybe",
		"--runtime-config=api/beta=true", "--runtime-config=resource.k8s.io/v1beta1=true", "--runtime-config=api/alpha", "--runtime-config=batch/v1/jobz=true"} {
		if _, err := read(wrong); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
	for _, wrong := range []string{"--watch-cache=false", "--egress-selector-config-file=x", "--logging-format=xml"} {
		if err := NewCommand().Flags().Parse([]string{wrong}); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func TestEtcdOverrides(t *testing.T) {
	for text, want := range map[string]string{
		"/events#http://127.0.0.1:1;http://127.0.0.1:2": "events",
		"coordination.k8s.io/leases#http://127.0.0.1:1": "leases.coordination.k8s.io",
		"events#http://127.0.0.1:1":                     "",
		"/events":                                       "",
		"/events#":                                      "",
		"/events#http://127.0.0.1:1#http://127.0.0.1:1": "",
		"apps/v1/deployments#http://127.0.0.1:1":        "",
	} {
		o := options{more: moreOptions{overrides: []string{text}}}
		apart, err := o.dialOverrides()
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", text, err)
		}
		for gr := range apart {
			if gr.String() != want {
				t.Errorf("%s: %s", text, gr)
			}
		}
		closeOverrides(apart)
	}
}

// TestAdvertisedWithoutNetwork checks that a host without a network can advertise a loopback
// address.
func TestAdvertisedWithoutNetwork(t *testing.T) {
	testnetns.Enter(t)
	for _, bind := range []string{"127.0.0.1", "::1"} {
		if got, err := (&options{bind: bind}).address(); err != nil || got.String() != bind {
			t.Errorf("--bind-address=%s: %v, %v", bind, got, err)
		}
	}
	if got, err := (&options{bind: "0.0.0.0"}).address(); err == nil || !strings.Contains(err.Error(), "specify --advertise-address") {
		t.Errorf("unspecified address: %v, %v", got, err)
	}
}

// TestAdvertised checks that an explicit --advertise-address is always used, and that a bind
// address that other hosts cannot reach is not advertised.
func TestAdvertised(t *testing.T) {
	own, err := hostaddress.Advertised(netip.IPv4Unspecified())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ advertise, bind, want string }{
		{"127.0.0.1", "127.0.0.2", "127.0.0.1"},
		{"192.0.2.1", "", "192.0.2.1"},
		{"0.0.0.0", "192.0.2.2", "192.0.2.2"},
		{"", "192.0.2.2", "192.0.2.2"},
		{"", "127.0.0.1", own.String()},
		{"", "0.0.0.0", own.String()},
		{"", "", own.String()},
	} {
		if c.want == (netip.Addr{}).String() {
			continue // this host has no suitable address
		}
		got, err := (&options{advertise: c.advertise, bind: c.bind}).address()
		if err != nil || got.String() != c.want {
			t.Errorf("--advertise-address=%s --bind-address=%s: %v, %v; want %s", c.advertise, c.bind, got, err, c.want)
		}
	}
	for _, o := range []*options{{advertise: "here"}, {bind: "there"}} {
		if got, err := o.address(); err == nil {
			t.Errorf("%q, %q: %v", o.advertise, o.bind, got)
		}
	}
}
