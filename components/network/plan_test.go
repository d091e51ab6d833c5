package network

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func node(name, address string, cidrs, subnets []netip.Prefix) member {
	return member{name: name, address: netip.MustParseAddr(address), cidrs: cidrs, subnets: subnets}
}

func TestPlan(t *testing.T) {
	self := node("a", "192.0.2.1", prefixes("10.1.0.0/24"), prefixes("192.0.2.1/24", "192.168.94.1/24"))
	for name, c := range map[string]struct {
		peer member
		mode Mode
		want string
	}{
		"itself":          {self, "", "[]"},
		"says nothing":    {node("b", "192.0.2.2", prefixes("10.1.1.0/24"), nil), "", "[]"},
		"no pods":         {node("b", "192.0.2.2", nil, prefixes("192.0.2.2/24")), "", "[]"},
		"same subnet":     {node("b", "192.0.2.2", prefixes("10.1.1.0/24"), prefixes("192.0.2.2/24")), "", "[{10.1.1.0/24 192.0.2.2 false}]"},
		"another bridge":  {node("b", "192.168.94.2", prefixes("10.1.1.0/24"), prefixes("192.168.94.2/24")), Auto, "[{10.1.1.0/24 192.168.94.2 false}]"},
		"its own machine": {node("b", "198.51.100.2", prefixes("10.1.1.0/24"), prefixes("198.51.100.2/24", "192.168.94.1/24")), "", "[{10.1.1.0/24 10.1.1.0 true}]"},
		"other subnet":    {node("b", "198.51.100.2", prefixes("10.1.1.0/24"), prefixes("198.51.100.2/24")), "", "[{10.1.1.0/24 10.1.1.0 true}]"},
		"never a tunnel":  {node("b", "198.51.100.2", prefixes("10.1.1.0/24"), prefixes("198.51.100.2/24")), Direct, "[]"},
		"always a tunnel": {node("b", "192.0.2.2", prefixes("10.1.1.0/24"), prefixes("192.0.2.2/24")), VXLAN, "[{10.1.1.0/24 10.1.1.0 true}]"},
		"both families":   {node("b", "192.0.2.2", prefixes("10.1.1.0/24", "fd00:1::/64"), prefixes("192.0.2.2/24")), "", "[{10.1.1.0/24 192.0.2.2 false} {fd00:1::/64 fd00:1:: true}]"},
	} {
		p := makePlan(self, []member{c.peer}, c.mode)
		tunnelled, texts := 0, []string{}
		for _, r := range p.routes {
			texts = append(texts, fmt.Sprintf("{%s %s %v}", r.dst, r.gateway, r.tunnel))
			if r.tunnel {
				tunnelled++
			}
		}
		if got := fmt.Sprint(texts); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if len(p.tunnels) != min(tunnelled, 1) {
			t.Errorf("%s: tunnels %v", name, p.tunnels)
		}
		// The other end makes the same decision.
		back := makePlan(c.peer, []member{self}, c.mode)
		if c.peer.name != "a" && len(c.peer.subnets) > 0 && len(c.peer.cidrs) == 1 && len(back.tunnels) != len(p.tunnels) {
			t.Errorf("%s: the other end decides otherwise: %v", name, back)
		}
	}
}

func TestPlugins(t *testing.T) {
	dir := t.TempDir()
	n := &Network{cfg: Config{CNIConfDir: dir}}
	for _, c := range []struct {
		file, text string
		want       bool
	}{
		{"README", "{}", false},
		{"20-other.conflist", `{"plugins": [{"type": "bridge"}]}`, true},
		{"10-own.conflist", `{"plugins": [{"type": "hyperkube-cni"}]}`, false},
		{"05-other.conf", `{"type": "bridge"}`, true},
	} {
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n.usesCNIPlugin() != c.want {
			t.Errorf("with %s: %v", c.file, !c.want)
		}
	}
}

// TestHardwareAddrs checks that MAC addresses are unique and that all nodes compute the same ones.
func TestHardwareAddrs(t *testing.T) {
	seen := map[[4]byte]string{}
	var first, second string
	for i := 0; first == ""; i++ {
		name := fmt.Sprintf("node-%d", i)
		if other, ok := seen[macSuffix(name)]; ok {
			first, second = min(other, name), max(other, name)
		}
		seen[macSuffix(name)] = name
	}
	members := []member{{name: second}, {name: "node-x"}, {name: first}, {name: first}}
	got := macAddresses(members)
	if len(got) != 3 || got[first].String() == got[second].String() {
		t.Errorf("%s and %s: %v", first, second, got)
	}
	slices.Reverse(members)
	if again := macAddresses(members); !reflect.DeepEqual(got, again) {
		t.Errorf("%v, and in another order %v", got, again)
	}
	if alone := macAddresses([]member{{name: first}}); alone[first].String() != got[first].String() {
		t.Errorf("%s has %s, and alone %s", first, got[first], alone[first])
	}
}
