package clusterconfig

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"hyperkube/internal/host/layout"
)

func TestFreeRange(t *testing.T) {
	for _, c := range []struct {
		name   string
		routes []string
		want   string
	}{
		{"no routes", nil, "10.244.0.0/16"},
		{"elsewhere", []string{"192.168.0.0/16"}, "10.244.0.0/16"},
		{"same CIDR", []string{"10.244.0.0/16"}, "10.245.0.0/16"},
		{"part of the CIDR", []string{"10.244.3.0/24", "10.245.0.0/24"}, "10.246.0.0/16"},
	} {
		var routes []netip.Prefix
		for _, r := range c.routes {
			routes = append(routes, netip.MustParsePrefix(r))
		}
		got, err := FreeRange(routes, "10.244.0.0/16", "10.%d.0.0/16", 245)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	if _, err := FreeRange([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "10.244.0.0/16", "10.%d.0.0/16", 245); err == nil {
		t.Error("no error although all CIDRs overlap with routes")
	}
}

func TestSaveAndLoad(t *testing.T) {
	l := layout.Under(t.TempDir())
	if _, ok, err := Load(l); ok || err != nil {
		t.Fatalf("loaded %v, %v from an empty directory", ok, err)
	}
	id, err := New(Cluster{NodeName: "one", ServiceCIDRs: []string{"10.100.0.0/16"}})
	if err != nil {
		t.Fatal(err)
	}
	if id.DNSAddress != "10.100.0.10" {
		t.Errorf("DNS address %s", id.DNSAddress)
	}
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := id.Save(l); err != nil {
		t.Fatal(err)
	}
	got, ok, err := Load(l)
	if err != nil || !ok || got.NodeName != "one" {
		t.Errorf("loaded %+v, %v, %v", got, ok, err)
	}
	for _, name := range []string{"No_Name", strings.Repeat("a", 64), strings.Repeat("a.", 32) + "b"} {
		if _, err := New(Cluster{NodeName: name}); err == nil || !strings.Contains(err.Error(), "set another name with --node-name") {
			t.Errorf("node name %q: %v", name, err)
		}
	}
	if _, err := New(Cluster{NodeName: strings.Repeat("a.", 31) + "b"}); err != nil {
		t.Error(err)
	}
}

func TestChooseRanges(t *testing.T) {
	for _, c := range []struct {
		name, pods, services string
		want                 string // pod and service CIDRs; empty if an error is expected
	}{
		{"pod CIDRs set", "10.1.0.0/16,fd01::/56", "", "10.1.0.0/16,fd01::/56 10.96.0.0/16,fd00:10:96::/112"},
		{"service CIDRs set", "", "fd02::/112", "fd00:10:244::/56 fd02::/112"},
		{"two CIDRs of one family", "10.1.0.0/16,10.2.0.0/16", "", ""},
		{"families in different order", "10.1.0.0/16", "fd02::/112,10.2.0.0/16", ""},
		{"invalid CIDR", "10.1.0.0", "", ""},
	} {
		ranges := func(text string) []string { return strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) }
		id := Cluster{PodCIDRs: ranges(c.pods), ServiceCIDRs: ranges(c.services)}
		err := id.ChooseRanges(nil)
		if got := strings.Join(id.PodCIDRs, ",") + " " + strings.Join(id.ServiceCIDRs, ","); (err != nil) != (c.want == "") || err == nil && got != c.want {
			t.Errorf("%s: %s, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestFirstPodCIDRs(t *testing.T) {
	for _, c := range []struct {
		cluster []string
		want    string
	}{
		{[]string{"10.244.0.0/16"}, "10.244.0.0/24"},
		{[]string{"10.244.0.0/16", "fd00:10:244::/56"}, "10.244.0.0/24,fd00:10:244::/64"},
		{[]string{"10.9.8.64/26"}, "10.9.8.64/26"},
	} {
		if got, err := FirstPodCIDRs(c.cluster); err != nil || got != c.want {
			t.Errorf("%v: %q (%v), want %q", c.cluster, got, err, c.want)
		}
	}
	if _, err := FirstPodCIDRs([]string{"pods"}); err == nil {
		t.Error("no error for an invalid CIDR")
	}
}
