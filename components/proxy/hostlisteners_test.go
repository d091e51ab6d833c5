package proxy

import (
	"net"
	"net/netip"
	"testing"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/testing/testnetns"
)

// TestRemoveUsedAddresses checks that load balancer addresses are removed where a program of the node listens, unless
// the Service had them before.
func TestRemoveUsedAddresses(t *testing.T) {
	// In a separate network namespace no other program uses the ports that must be free. Subtests would leave it.
	testnetns.Enter(t)
	up(&bench{t: t}, "lo")
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	local, elsewhere := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77")
	used := map[string]uint16{
		"tcp": uint16(tcp.Addr().(*net.TCPAddr).Port), "udp": uint16(udp.LocalAddr().(*net.UDPAddr).Port),
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := uint16(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	port := func(protocol string, number uint16, ips ...netip.Addr) *rules.Port {
		return &rules.Port{Protocol: protocol, Port: number, LoadBalancerIPs: ips}
	}
	for name, test := range map[string]struct {
		before, after []*rules.Port
		left          int // load balancer addresses that remain
	}{
		"TCP listener":              {nil, []*rules.Port{port("tcp", used["tcp"], local)}, 0},
		"UDP socket":                {nil, []*rules.Port{port("udp", used["udp"], local)}, 0},
		"other protocol":            {nil, []*rules.Port{port("tcp", used["udp"], local)}, 1},
		"address of another node":   {nil, []*rules.Port{port("tcp", used["tcp"], elsewhere)}, 1},
		"one of two addresses":      {nil, []*rules.Port{port("tcp", used["tcp"], elsewhere, local)}, 1},
		"free port":                 {nil, []*rules.Port{port("tcp", unused, local)}, 1},
		"SCTP":                      {nil, []*rules.Port{port("sctp", used["tcp"], local)}, 1},
		"address before the socket": {[]*rules.Port{port("tcp", used["tcp"], local)}, []*rules.Port{port("tcp", used["tcp"], local)}, 1},
		"new address":               {[]*rules.Port{port("tcp", used["tcp"], elsewhere)}, []*rules.Port{port("tcp", used["tcp"], local)}, 0},
	} {
		total := len(test.after[0].LoadBalancerIPs)
		removed := removeUsedAddresses(test.before, test.after)
		if left := len(test.after[0].LoadBalancerIPs); left != test.left || len(removed) != total-left {
			t.Errorf("%s: %d addresses remain, %v were removed, want %d", name, left, removed, test.left)
		}
	}
}
