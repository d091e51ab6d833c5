package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plugin is a shell script that logs its input and returns a result.
const plugin = `#!/bin/sh
printf '%s %s %s ' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_IFNAME" >> LOG
cat | tr -d '\n' >> LOG
echo >> LOG
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "host0"}, {"name": "eth0", "sandbox": "/x"}],
	"ips": [{"address": "10.1.2.3/24", "interface": 1}, {"address": "10.1.2.1/24", "interface": 0}, {"address": "fd01::3/64", "interface": 1}]}';;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}';;
STATUS) [ ! -e LOG.down ] || { echo '{"cniVersion": "1.1.0", "code": 50, "msg": "no way out"}'; exit 1; };;
esac
`

func TestPlugins(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	p := New(filepath.Join(dir, "net.d"), []string{filepath.Join(dir, "bin")}, filepath.Join(dir, "cache"))
	if n, err := p.Configured(); n != nil || err != nil {
		t.Fatalf("without a directory: %v, %v", n, err)
	}
	for _, sub := range []string{"net.d", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/recorder", strings.ReplaceAll(plugin, "LOG", log), 0o755)
	write("net.d/05-bad.conflist", "{", 0o644)
	if n, err := p.Configured(); n != nil || err == nil {
		t.Errorf("what cannot be read: %v, %v", n, err)
	}
	write("net.d/20-old.conf", `{"cniVersion": "0.4.0", "name": "old", "type": "recorder"}`, 0o644)
	if n, err := p.Configured(); err != nil || n.Name() != "old" {
		t.Errorf("one plugin: %v, %v", n, err)
	}
	write("net.d/10-new.conflist", `{"cniVersion": "1.1.0", "name": "new", "plugins": [{"type": "recorder", "capabilities": {"portMappings": true}}]}`, 0o644)
	n, err := p.Configured()
	if err != nil || n.Name() != "new" {
		t.Fatalf("%v, %v", n, err)
	}
	if n, err = Parse(n.Bytes()); err != nil {
		t.Fatal(err)
	}

	pod := Pod{ID: "abc", Netns: "/proc/1/ns/net", Namespace: "ns", Name: "web", UID: "u", Capabilities: map[string]any{
		"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}},
		"bandwidth":    Bandwidth{Ingress: 1000}.Capability(),
	}}
	addrs, err := p.Add(t.Context(), n, pod)
	if err != nil || fmt.Sprint(addrs) != "[10.1.2.3 fd01::3]" {
		t.Errorf("addresses %v, %v", addrs, err)
	}
	if err := p.Check(t.Context(), n, pod); err != nil {
		t.Error(err)
	}
	if err := p.Status(t.Context(), n); err != nil {
		t.Error(err)
	}
	write("log.down", "", 0o644)
	if err := p.Status(t.Context(), n); err == nil || !strings.Contains(err.Error(), "no way out") {
		t.Errorf("a plugin that cannot: %v", err)
	}
	pod.Netns = ""
	for range 2 {
		if err := p.Del(t.Context(), n, pod); err != nil {
			t.Error(err)
		}
	}
	pod.ID = "gone"
	if _, err := p.Add(t.Context(), n, pod); err != nil {
		t.Error(err)
	}
	if err := p.GC(t.Context(), n, func() []string { return []string{"other"} }); err != nil {
		t.Error(err)
	}
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADD abc eth0 ", `"hostPort":80`, "CHECK abc eth0 ", "DEL abc eth0 ", "DEL gone eth0", "GC ", `"containerID":"other"`} {
		if !strings.Contains(string(said), want) {
			t.Errorf("no %s in\n%s", want, said)
		}
	}
	if strings.Contains(string(said), "bandwidth") {
		t.Error("a plugin gets capabilities that it did not request")
	}
}

func TestBandwidth(t *testing.T) {
	for text, want := range map[string]uint64{"1M": 1e6, "10k": 10e3, "999": 0, "2P": 0, "fast": 0} {
		b, err := BandwidthOf(map[string]string{"kubernetes.io/egress-bandwidth": text})
		if b.Egress != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %+v, %v", text, b, err)
		}
	}
	if b, err := BandwidthOf(map[string]string{"other": "1"}); err != nil || b.Capability() != nil {
		t.Errorf("%+v, %v", b, err)
	}
}

// FuzzParse parses arbitrary configurations, because they are written by other programs.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name": "x", "plugins": [{"type": "y"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, err := Parse(data); err == nil && n.Name() == "" && len(n.Bytes()) == 0 {
			t.Error("nothing, and no error")
		}
	})
}

// TestCollectLeavesOthers checks that GC lists the attachments of other runtimes as valid, and that
// Add blocks during GC.
func TestCollectLeavesOthers(t *testing.T) {
	dir := t.TempDir()
	log, bin := filepath.Join(dir, "log"), filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "recorder"), []byte(strings.ReplaceAll(plugin, "LOG", log)), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	network := func(name string) *Network {
		t.Helper()
		n, err := Parse([]byte(`{"cniVersion": "1.1.0", "name": "` + name + `", "plugins": [{"type": "recorder"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	allCaches := filepath.Join(dir, "*", "cni")
	ours := New("", []string{bin}, filepath.Join(dir, "ours", "cni"), allCaches)
	theirs := New("", []string{bin}, filepath.Join(dir, "theirs", "cni"), allCaches)
	for _, c := range []struct {
		plugins     *Plugins
		network, id string
	}{{ours, "n", "left"}, {theirs, "n", "neighbour"}, {theirs, "m", "stranger"}} {
		if _, err := c.plugins.Add(t.Context(), network(c.network), Pod{ID: c.id, Netns: "/proc/1/ns/net"}); err != nil {
			t.Fatal(err)
		}
	}
	late := make(chan error, 1)
	err := ours.GC(t.Context(), network("n"), func() []string {
		go func() {
			_, err := ours.Add(context.Background(), network("n"), Pod{ID: "late", Netns: "/proc/1/ns/net"})
			late <- err
		}()
		return nil
	})
	if err := errors.Join(err, <-late); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	said := string(raw)
	gc := strings.Index(said, "GC ")
	if gc < 0 || gc > strings.Index(said, "ADD late") {
		t.Errorf("a pod is connected while what is stale is collected:\n%s", said)
	}
	line, _, _ := strings.Cut(said[gc:], "\n")
	if !strings.Contains(line, `"containerID":"neighbour"`) || strings.Contains(line, "stranger") || strings.Contains(line, `"left"`) {
		t.Errorf("in use is not the neighbour alone: %s", line)
	}
	if !strings.Contains(said, "DEL left") || strings.Contains(said, "DEL neighbour") || strings.Contains(said, "DEL late") {
		t.Errorf("GC released a valid attachment or kept an invalid one:\n%s", said)
	}
}
