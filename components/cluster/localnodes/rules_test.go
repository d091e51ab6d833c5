package localnodes

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// fakeKernel is a backend with a fixed state.
type fakeKernel struct {
	state *packetfilter.State
	first string // the first change, as iptables-restore reads it
}

func (k *fakeKernel) Read(context.Context, packetfilter.Family) (*packetfilter.State, error) {
	return k.state, nil
}

func (k *fakeKernel) Apply(_ context.Context, _ packetfilter.Family, change packetfilter.Change) error {
	if k.first == "" {
		k.first = change.String()
	}
	return nil
}

// check reports whether rules are missing if iptables-save prints saved, and what is written then.
func check(t *testing.T, m *Network, saved string) (missing bool, written string) {
	t.Helper()
	kernel := &fakeKernel{state: packetfilter.ParseState(saved)}
	w := packetfilter.NewWriter(packetfilter.Config{Backend: kernel})
	missing, err := w.Missing(t.Context(), packetfilter.IPv4, m.rules(m.Subnet))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Sync(t.Context(), packetfilter.IPv4, m.rules(m.Subnet)); err != nil {
		t.Fatal(err)
	}
	return missing, kernel.first
}

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
	missing, again := check(t, m, saved)
	if missing {
		t.Error("complete rules are reported as incomplete")
	}
	if strings.Contains(again, "-I ") {
		t.Errorf("jumps are written twice:\n%s", again)
	}
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "-A") {
			continue
		}
		missing, restored := check(t, m, strings.Replace(saved, line, "", 1))
		if !missing {
			t.Errorf("complete without %s", line)
		}
		if words := strings.Fields(line); !strings.HasPrefix(words[1], chain) && !strings.Contains(restored, "-I "+words[1]+" 1 ") {
			t.Errorf("%s is not restored", line)
		}
	}
	if missing, _ := check(t, m, ""); !missing {
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
	if _, rules := check(t, m, saved); !strings.Contains(rules, "-I FORWARD 4 ") || !strings.Contains(rules, "-I INPUT 1 ") {
		t.Errorf("not after the rules of kube-proxy:\n%s", rules)
	}
}
