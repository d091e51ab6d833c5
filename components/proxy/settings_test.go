package proxy

import (
	"net/netip"
	"slices"
	"testing"

	"hyperkube/components/proxy/rules"
)

func ranges(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// ofBoth are the facts of a dual-stack node.
var ofBoth = nodeFacts{
	addresses: map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.1"), true: netip.MustParseAddr("2001:db8::1")},
	podCIDRs:  map[bool]netip.Prefix{false: netip.MustParsePrefix("10.244.1.0/24")},
}

func TestAddressesOfTheNode(t *testing.T) {
	p := &Proxy{}
	for ipv6, want := range map[bool]string{false: "192.0.2.1", true: "2001:db8::1"} {
		if got := p.rulesConfig(ipv6, ofBoth); got.IPv6 != ipv6 || len(got.NodeIPs) != 1 || got.NodeIPs[0].String() != want {
			t.Errorf("IPv6 %v: %+v", ipv6, got)
		}
	}
	if got := p.rulesConfig(true, nodeFacts{}); got.NodeIPs != nil {
		t.Errorf("a node without addresses has %v", got.NodeIPs)
	}
}

// TestWhereNodePortsAnswer checks nodePortRanges. No ranges means all addresses.
func TestWhereNodePortsAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		given    []netip.Prefix
		primary  bool
		ipv4     []netip.Prefix
		ipv6     []netip.Prefix
		loopback bool
	}{
		"everywhere":         {loopback: true},
		"some of a family":   {given: ranges("192.0.2.0/24"), ipv4: ranges("192.0.2.0/24")},
		"some of the other":  {given: ranges("2001:db8::/64"), ipv6: ranges("2001:db8::/64"), loopback: true},
		"all of a family":    {given: ranges("0.0.0.0/0", "192.0.2.0/24"), loopback: true},
		"loopback and some":  {given: ranges("192.0.2.0/24", "127.0.0.0/8"), ipv4: ranges("192.0.2.0/24", "127.0.0.0/8"), loopback: true},
		"one of loopback's":  {given: ranges("127.0.0.1/32"), ipv4: ranges("127.0.0.1/32"), loopback: true},
		"the node's primary": {primary: true, ipv4: ranges("192.0.2.1/32"), ipv6: ranges("2001:db8::1/128")},
	} {
		p := &Proxy{cfg: Config{NodePortRanges: tc.given, NodePortsOnPrimary: tc.primary, LocalhostNodePorts: true}}
		if got := p.nodePortRanges(false, ofBoth); !slices.Equal(got, tc.ipv4) {
			t.Errorf("%s: on %v, want %v", name, got, tc.ipv4)
		}
		if got := p.nodePortRanges(true, ofBoth); !slices.Equal(got, tc.ipv6) {
			t.Errorf("%s: on %v, want %v", name, got, tc.ipv6)
		}
		if got := p.localhostNodePorts(); got != tc.loopback {
			t.Errorf("%s: on 127.0.0.1 they answer: %v", name, got)
		}
		p.cfg.LocalhostNodePorts = false
		if p.localhostNodePorts() {
			t.Errorf("%s: they answer on 127.0.0.1 though they are not to", name)
		}
	}
}

func TestWhosePodTrafficIs(t *testing.T) {
	cluster := ranges("fd00::/48", "10.244.0.0/16")
	for name, tc := range map[string]struct {
		cfg  Config
		ipv6 bool
		want rules.Source
	}{
		"cluster":              {Config{PodCIDRs: cluster}, false, rules.FromRange(cluster[1])},
		"cluster, IPv6":        {Config{PodCIDRs: cluster}, true, rules.FromRange(cluster[0])},
		"cluster of one":       {Config{PodCIDRs: cluster[:1]}, false, rules.Source{}},
		"node":                 {Config{DetectLocalMode: LocalByNodeCIDR, PodCIDRs: cluster}, false, rules.FromRange(ofBoth.podCIDRs[false])},
		"node, not known yet":  {Config{DetectLocalMode: LocalByNodeCIDR, PodCIDRs: cluster}, true, rules.Source{}},
		"bridge":               {Config{DetectLocalMode: LocalByBridge, PodLink: "cni0"}, false, rules.FromInterface("cni0")},
		"prefix of interfaces": {Config{DetectLocalMode: LocalByLinkPrefix, PodLink: "veth"}, true, rules.FromInterface("veth+")},
	} {
		if got := (&Proxy{cfg: tc.cfg}).podTraffic(tc.ipv6, ofBoth); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
