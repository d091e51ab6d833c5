package proxy

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testnetns"
)

// everyPort returns ports of Services with all kinds of addresses and policies, in one IP family.
func everyPort(ipv6 bool) []*rules.Port {
	addr := func(text4, text6 string) netip.Addr {
		if ipv6 {
			return netip.MustParseAddr(text6)
		}
		return netip.MustParseAddr(text4)
	}
	pod := rules.Endpoint{Address: netip.AddrPortFrom(addr("10.244.0.5", "fd01::5"), 8080)}
	other := rules.Endpoint{Address: netip.AddrPortFrom(addr("10.244.1.5", "fd01:1::5"), 8080)}
	base := rules.Port{
		Namespace: "default", Service: "web", Protocol: "tcp", ClusterIP: addr("10.96.0.7", "fd02::7"), Port: 80, NodePort: 30080,
		ExternalIPs: []netip.Addr{addr("198.51.100.7", "fd03::7")}, LoadBalancerIPs: []netip.Addr{addr("203.0.113.7", "fd04::7")},
		SourceRanges:  []netip.Prefix{netip.PrefixFrom(addr("198.18.0.0", "fd05::"), 15), netip.PrefixFrom(addr("192.0.2.1", "fd06::1"), 32)},
		LocalExternal: true, HealthCheckPort: 32000, HasAny: true, Endpoints: []rules.Endpoint{pod, other}, LocalEndpoints: []rules.Endpoint{pod},
	}
	affine, refused := base, base
	affine.Service, affine.Port, affine.NodePort, affine.Affinity, affine.Protocol = "affine", 81, 30081, 60, "udp"
	refused.Service, refused.Port, refused.NodePort, refused.HasAny, refused.Endpoints, refused.LocalEndpoints = "refused", 82, 30082, false, nil, nil
	return []*rules.Port{&base, &affine, &refused}
}

// TestListing checks that the program nft, with which users list rules, can print those of all Services.
func TestListing(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	testnetns.Enter(t)
	for _, ipv6 := range []bool{false, true} {
		translator := rules.NewTranslator(packetfilter.NFTables)
		translator.Replace(nil, everyPort(ipv6))
		set := translator.Build(rules.Config{IPv6: ipv6, Pods: rules.FromInterface("hk+")})
		if err := newWriter(Config{PacketFilter: packetfilter.NFTables}).Sync(t.Context(), packetfilter.FamilyOf(ipv6), set); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Errorf("nft list ruleset: %v", err)
	}
	for _, want := range []string{"default/affine cluster IP", "the client's last endpoint", "map @set-KUBE-ENDPOINTS"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nft does not print %q", want)
		}
	}
	t.Logf("%s", out)
}

// TestModeChange checks that the rules of Services in the other mode are removed when the mode changes, and all rules by
// the clean-up.
func TestModeChange(t *testing.T) {
	testnetns.Enter(t)
	for _, mode := range []packetfilter.Mode{packetfilter.IPTables, packetfilter.NFTables, packetfilter.IPTables, packetfilter.NFTables} {
		translator := rules.NewTranslator(mode)
		translator.Replace(nil, everyPort(false))
		if err := newWriter(Config{PacketFilter: mode}).Sync(t.Context(), packetfilter.IPv4, translator.Build(rules.Config{Pods: clusterPods})); err != nil {
			t.Fatal(err)
		}
		chains, err := packetfilter.CountNFTables(t.Context(), packetfilter.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		saved := save(t)
		if inIPTables := strings.Contains(saved, "KUBE"); inIPTables != (mode == packetfilter.IPTables) || chains > 0 != (mode == packetfilter.NFTables) {
			t.Errorf("%s: %d chains of nftables, and of iptables\n%s", mode, chains, saved)
		}
	}
	if err := packetfilter.Remove(t.Context(), packetfilter.IPv4, rules.AllChains()); err != nil {
		t.Fatal(err)
	}
	if chains, err := packetfilter.CountNFTables(t.Context(), packetfilter.IPv4); err != nil || chains > 0 || strings.Contains(save(t), "KUBE") {
		t.Errorf("%d chains of nftables are left, and of iptables\n%s", chains, save(t))
	}
}
