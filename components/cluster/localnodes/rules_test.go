package localnodes

import (
	"net/netip"
	"strings"
	"testing"

	"hyperkube/internal/layout"
)

// What is missing of the rules is seen, and written by what puts it back.
func TestWhole(t *testing.T) {
	m := &Machine{Layout: layout.Default(), Subnet: netip.MustParsePrefix("192.168.94.0/24"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	saved := `*nat
:POSTROUTING ACCEPT [0:0]
:HK-NODES - [0:0]
-A POSTROUTING -m comment --comment "hyperkube nodes of this machine" -j HK-NODES
-A HK-NODES -d 10.244.0.0/16 -j RETURN
-A HK-NODES -s 192.168.94.0/24 ! -o hk-nodes -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:HK-NODES - [0:0]
:HK-NODES-INPUT - [0:0]
-A INPUT -m comment --comment "hyperkube nodes of this machine" -j HK-NODES-INPUT
-A FORWARD -m comment --comment "hyperkube nodes of this machine" -j HK-NODES
-A HK-NODES -i hk-nodes ! -o hk-br0 -j ACCEPT
-A HK-NODES ! -i hk-br0 -o hk-nodes -j ACCEPT
-A HK-NODES-INPUT -i hk-nodes -s 192.168.94.0/24 -j ACCEPT
COMMIT
`
	if !m.whole(m.Subnet, saved) {
		t.Error("all rules are not whole")
	}
	if again := m.rules(m.Subnet, saved); strings.Contains(again, "-I ") {
		t.Errorf("jumps would be there twice:\n%s", again)
	}
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "-A") {
			continue
		}
		left := strings.Replace(saved, line, "", 1)
		if m.whole(m.Subnet, left) {
			t.Errorf("whole without %s", line)
		}
		if words := strings.Fields(line); !strings.HasPrefix(words[1], chain) && !strings.Contains(m.rules(m.Subnet, left), "-I "+words[1]+" 1 ") {
			t.Errorf("%s would not come back", line)
		}
	}
	if m.whole(m.Subnet, "") {
		t.Error("nothing is whole")
	}
}

// The service proxy's rules come first: they keep from a load balancer's address
// whom it is not for.
func TestBehindProxy(t *testing.T) {
	m := &Machine{Layout: layout.Default(), Subnet: netip.MustParsePrefix("192.168.94.0/24")}
	const saved = `*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -j OTHERS
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -j DROP
COMMIT
`
	if rules := m.rules(m.Subnet, saved); !strings.Contains(rules, "-I FORWARD 4 ") || !strings.Contains(rules, "-I INPUT 1 ") {
		t.Errorf("not behind the proxy's:\n%s", rules)
	}
}
