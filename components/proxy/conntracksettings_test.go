package proxy

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/testing/testnetns"
)

// asking parses flags, and a configuration file if it is not empty.
func asking(t *testing.T, file string, flags ...string) *options {
	t.Helper()
	cmd, o := command()
	if err := cmd.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	if file != "" {
		o.file = filepath.Join(t.TempDir(), "config.yaml")
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: " + file + "\n"
		if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.complete(cmd.Flags().Changed); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestBounds checks that conntrack parameters equal those of upstream's proxy, and which of them
// were set explicitly.
func TestBounds(t *testing.T) {
	const waits = " tcp_timeout_established=86400 tcp_timeout_close_wait=3600"
	for _, c := range []struct {
		file  string
		flags []string
		cpus  int
		want  string
	}{
		{"", nil, 2, "max=131072 hashsize=32768" + waits},
		{"", nil, 8, "max=262144 hashsize=65536" + waits},
		{"", nil, 64, "max=1048576 hashsize=262144" + waits},
		{"", []string{"--conntrack-max-per-core=0"}, 2, strings.TrimSpace(waits)},
		{"", []string{"--conntrack-min=9", "--conntrack-max-per-core=3"}, 2, "max=9! hashsize=2!" + waits},
		{"", []string{"--conntrack-min=2000000"}, 2, "max=2000000 hashsize=500000" + waits},
		{"", []string{"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=1m", "--conntrack-udp-timeout=5s"}, 2, "max=131072 hashsize=32768 tcp_timeout_close_wait=60! udp_timeout=5!"},
		{"{}", nil, 2, "max=131072 hashsize=32768" + waits},
		{"{maxPerCore: 0, tcpEstablishedTimeout: 1h, tcpBeLiberal: true}", nil, 2, "tcp_timeout_established=3600! tcp_timeout_close_wait=3600 tcp_be_liberal=1!"},
	} {
		o := asking(t, c.file, c.flags...)
		var said []string
		for _, b := range conntrackParams(o.explicit, c.cpus) {
			text := fmt.Sprintf("%s=%d", strings.TrimPrefix(filepath.Base(b.change.Name), "nf_conntrack_"), b.value)
			if b.explicit {
				text += "!"
			}
			said = append(said, text)
		}
		if got := strings.Join(said, " "); got != c.want {
			t.Errorf("%s %v: %s, want %s", c.file, c.flags, got, c.want)
		}
		if m := o.config.Conntrack; m.MaxPerCore == nil || m.Min == nil || m.TCPEstablishedTimeout == nil || m.TCPCloseWaitTimeout == nil {
			t.Errorf("%s %v: %+v is not complete", c.file, c.flags, m)
		}
	}
	for _, text := range []string{"{maxPerCore: -1}", "{min: -1}", "{tcpEstablishedTimeout: -1s}", "{tcpCloseWaitTimeout: -1s}", "{udpTimeout: -1s}", "{udpStreamTimeout: -1s}"} {
		if err := apply(asking(t, text).config, &Config{}); err == nil || !strings.Contains(err.Error(), "must be greater than or equal to 0") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestBoundsOfANamespace checks that parameters of a network namespace are set and reverted, and
// that global parameters are skipped, or fail if they were set explicitly.
func TestBoundsOfANamespace(t *testing.T) {
	testnetns.Enter(t)
	if !conntrackLoaded() {
		t.Skip("the kernel follows no connections yet")
	}
	read := func(name string) string {
		data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	table, err := os.ReadFile("/sys/module/nf_conntrack/parameters/hashsize")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"max", "tcp_timeout_established", "tcp_timeout_close_wait"}
	var before []string
	for _, name := range names {
		before = append(before, read(name))
	}
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// More CPUs than any machine has, so that values change.
	unasked := conntrackParams(kubeproxyv1alpha1.KubeProxyConntrackConfiguration{}, 1<<20)
	for range 2 {
		if err := setConntrackParams(unasked, journal, slog.Default()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := []string{read("max"), read("tcp_timeout_established"), read("tcp_timeout_close_wait")}, []string{before[0], "86400", "3600"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if changes, err := hostjournal.Read(path); err != nil || len(changes) != 2 {
		t.Errorf("recorded %+v, %v", changes, err)
	}
	// No program sets this bound.
	asked := asking(t, "{maxPerCore: 3, min: 130001}").explicit
	if err := setConntrackParams(conntrackParams(asked, 1), journal, slog.Default()); err == nil {
		t.Error("a bound of the whole machine was set in a namespace")
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hostjournal.Undo(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if got := read(name); got != before[i] {
			t.Errorf("%s is %s afterwards, want %s", name, got, before[i])
		}
	}
	if after, err := os.ReadFile("/sys/module/nf_conntrack/parameters/hashsize"); err != nil || string(after) != string(table) {
		t.Errorf("the table has room for %s, %v: want %s", after, err, table)
	}
}
