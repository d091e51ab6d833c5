package proxy

import (
	"encoding/json"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestConfigurationFile(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for name, c := range map[string]struct {
		text, want string // want is contained in the error
	}{
		"defaults":       {head, ""},
		"all that is":    {head + "mode: iptables\nclusterCIDR: 10.1.0.0/16,fd00::/56\nnodePortAddresses: [192.0.2.0/24]\niptables: {masqueradeAll: true, masqueradeBit: 7, syncPeriod: 1m}\n", ""},
		"another mode":   {head + "mode: ipvs\n", `mode: unsupported value "ipvs"`},
		"no such field":  {head + "modes: iptables\n", "modes"},
		"another kind":   {"apiVersion: v1\nkind: ConfigMap\n", "expected KubeProxyConfiguration"},
		"no such range":  {head + "nodePortAddresses: [here]\n", "nodePortAddresses"},
		"no such bit":    {head + "iptables: {masqueradeBit: 32}\n", "masqueradeBit"},
		"no link":        {head + "detectLocalMode: BridgeInterface\n", "detectLocal.bridgeInterface: Required value"},
		"no prefix":      {head + "detectLocalMode: InterfaceNamePrefix\n", "detectLocal.interfaceNamePrefix: Required value"},
		"another way":    {head + "detectLocalMode: Guess\n", "detectLocalMode: Unsupported value"},
		"bridge":         {head + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0}\n", ""},
		"no range, pods": {head + "clusterCIDR: x\n", "clusterCIDR"},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := &options{config: defaults(), file: file, hostname: "Here"}
		var cfg Config
		err := o.complete(func(string) bool { return false })
		if err == nil {
			err = apply(o.config, &cfg)
		}
		if c.want == "" && (err != nil || cfg.NodeName != "Here" || !cfg.LocalhostNodePorts || cfg.HealthzAddress != "0.0.0.0:10256") {
			t.Errorf("%s: %+v, %v", name, cfg, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if name == "all that is" && (len(cfg.PodCIDRs) != 2 || len(cfg.NodePortRanges) != 1 || cfg.MasqueradeMark != 1<<7 || cfg.SyncPeriod != time.Minute) {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
}

// TestPorts checks that addresses without a port get the port of the port flags, or the default
// port in a configuration file.
func TestPorts(t *testing.T) {
	for _, c := range []struct {
		flags            []string
		healthz, metrics string
	}{
		{nil, "0.0.0.0:10256", "127.0.0.1:10249"},
		{[]string{"--healthz-bind-address=::1", "--metrics-bind-address=192.0.2.1"}, "[::1]:10256", "192.0.2.1:10249"},
		{[]string{"--healthz-bind-address=::1", "--healthz-port=7", "--metrics-port=0"}, "[::1]:7", ""},
		{[]string{"--healthz-bind-address=192.0.2.1:8", "--healthz-port=7"}, "192.0.2.1:8", "127.0.0.1:10249"},
	} {
		cmd, o := command()
		if err := cmd.ParseFlags(c.flags); err != nil {
			t.Fatal(err)
		}
		if err := o.complete(cmd.Flags().Changed); err != nil {
			t.Fatal(err)
		}
		var cfg Config
		if err := apply(o.config, &cfg); err != nil || cfg.HealthzAddress != c.healthz || cfg.MetricsAddress != c.metrics {
			t.Errorf("%v: %q and %q, %v", c.flags, cfg.HealthzAddress, cfg.MetricsAddress, err)
		}
	}
}

// TestHealth checks that health check responses about services, the proxy and the node equal those
// of upstream's proxy.
func TestHealth(t *testing.T) {
	h := newHealth(Config{}, newMetrics())
	h.services["ns/web"] = &serviceHealth{local: 2}
	ask := func(path string) (int, map[string]any, string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler := h.serveHealthz
		switch path {
		case "/livez":
			handler = h.serveLivez
		case "/web":
			handler = h.serviceHandler("ns/web")
		}
		handler(w, nil)
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		return w.Code, body, w.Header().Get("X-Load-Balancing-Endpoint-Weight")
	}
	for i, want := range [][]int{{503, 503, 503}, {200, 200, 200}, {503, 200, 200}, {503, 503, 503}} {
		switch i {
		case 1:
			h.recordSuccess()
		case 2:
			h.setEligible(false)
		case 3:
			h.recordFailure()
			h.pending = h.pending.Add(-2 * unhealthyAfter)
		}
		for j, path := range []string{"/healthz", "/livez", "/web"} {
			code, body, weight := ask(path)
			if code != want[j] {
				t.Errorf("step %d: %s is %d %v, want %d", i, path, code, body, want[j])
			}
			if path == "/web" && (weight != "2" || body["localEndpoints"] != 2.0 || body["serviceProxyHealthy"] != (i == 1 || i == 2)) {
				t.Errorf("step %d: %v, weight %s", i, body, weight)
			}
			if path == "/healthz" && body["nodeEligible"] != (i < 2) {
				t.Errorf("step %d: %v", i, body)
			}
		}
	}
}

// FuzzConfiguration checks that any file content is accepted or rejected without a panic.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if c := defaults(); decode(data, c) == nil {
			_ = apply(c, &Config{})
		}
	})
}

// TestEffective checks that /configz of a proxy without a configuration file shows the equivalent
// file.
func TestEffective(t *testing.T) {
	prefixes := func(list ...string) []netip.Prefix {
		out, err := parsePrefixes(list)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, cfg := range map[string]Config{
		"as up has it": {NodeName: "n", PodCIDRs: prefixes("10.1.0.0/24", "fd00::/64"), LocalhostNodePorts: true, HealthzAddress: ":10256", MetricsAddress: "127.0.0.1:10249"},
		"all": {
			NodeName: "n", DetectLocalMode: LocalByBridge, PodLink: "br0", NodePortRanges: prefixes("192.0.2.0/24"), NodePortsOnPrimary: true, MasqueradeAll: true,
			MasqueradeMark: 1 << 7, Profiling: true,
		},
	} {
		cfg.SyncPeriod, cfg.MinSyncPeriod = time.Minute, time.Second
		var back Config
		if err := apply(effectiveConfig(&cfg), &back); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(back, cfg) {
			t.Errorf("%s: %+v, want %+v", name, back, cfg)
		}
	}
	w := httptest.NewRecorder()
	debugHandlers(Config{NodeName: "n"})["/configz"].ServeHTTP(w, httptest.NewRequest("GET", "/configz", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"hostnameOverride":"n"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
