package localnodes

import (
	"net/netip"
	"strings"
	"testing"

	"hyperkube/internal/host/layout"
)

// TestHasAllRules checks that a missing rule is detected and that rules restores it.
func TestHasAllRules(t *testing.T) {
	m := &Network{Layout: layout.Default(), Subnet: netip.MustParsePrefix("192.168.94.0/24"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
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
	if !m.hasAllRules(m.Subnet, saved) {
		t.Error("complete rules are reported as incomplete")
	}
	if again := m.rules(m.Subnet, saved); strings.Contains(again, "-I ") {
		t.Errorf("jumps are written twice:\n%s", again)
	}
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "-A") {
			continue
		}
		left := strings.Replace(saved, line, "", 1)
		if m.hasAllRules(m.Subnet, left) {
			t.Errorf("complete without %s", line)
		}
		if words := strings.Fields(line); !strings.HasPrefix(words[1], chain) && !strings.Contains(m.rules(m.Subnet, left), "-I "+words[1]+" 1 ") {
			t.Errorf("%s is not restored", line)
		}
	}
	if m.hasAllRules(m.Subnet, "") {
		t.Error("empty output is reported as complete")
	}
}

// TestJumpsAfterProxy checks that jumps are inserted after those of kube-proxy, which restrict the
// source addresses of load balancers.
func TestJumpsAfterProxy(t *testing.T) {
	m := &Network{Layout: layout.Default(), Subnet: netip.MustParsePrefix("192.168.94.0/24")}
	const saved = `*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -j OTHERS
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -j DROP
COMMIT
`
	if rules := m.rules(m.Subnet, saved); !strings.Contains(rules, "-I FORWARD 4 ") || !strings.Contains(rules, "-I INPUT 1 ") {
		t.Errorf("not after the rules of kube-proxy:\n%s", rules)
	}
}
