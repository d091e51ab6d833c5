package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"hyperkube/internal/pod/netannotation"
)

// publicKey returns a key that differs for each n.
func publicKey(n byte) wgtypes.Key { return wgtypes.Key{1: n}.PublicKey() }

func TestEncryptedPlan(t *testing.T) {
	self := node("a", "192.0.2.1", prefixes("10.1.0.0/24"), prefixes("192.0.2.1/24", "192.168.94.1/24"))
	peer := func(name, address, cidr, subnet string, keys netannotation.WireGuardKeys) member {
		m := node(name, address, prefixes(cidr), prefixes(subnet))
		m.keys = keys
		return m
	}
	one, two := publicKey(1).String(), publicKey(2).String()
	for _, c := range []struct {
		name   string
		peers  []member
		routes string
		keys   []string
	}{
		{"another node", []member{peer("b", "198.51.100.2", "10.1.1.0/24", "198.51.100.2/24", netannotation.WireGuardKeys{Key: one})},
			"[10.1.0.0/16 unreachable, 10.1.1.0/24 tunnel]", []string{one + " 198.51.100.2:51820 [10.1.1.0/24]"}},
		{"address in the same subnet", []member{peer("b", "203.0.113.1", "10.1.1.0/24", "192.168.94.7/24", netannotation.WireGuardKeys{Key: one})},
			"[10.1.0.0/16 unreachable, 10.1.1.0/24 tunnel]", []string{one + " 192.168.94.7:51820 [10.1.1.0/24]"}},
		{"no key", []member{peer("b", "198.51.100.2", "10.1.1.0/24", "198.51.100.2/24", netannotation.WireGuardKeys{})},
			"[10.1.0.0/16 unreachable, 10.1.1.0/24 unreachable]", nil},
		{"invalid key", []member{peer("b", "198.51.100.2", "10.1.1.0/24", "198.51.100.2/24", netannotation.WireGuardKeys{Key: "x"})},
			"[10.1.0.0/16 unreachable, 10.1.1.0/24 unreachable]", nil},
		{"next key", []member{peer("b", "198.51.100.2", "10.1.1.0/24", "198.51.100.2/24", netannotation.WireGuardKeys{Key: one, Next: two})},
			"[10.1.0.0/16 unreachable, 10.1.1.0/24 tunnel]", []string{one + " 198.51.100.2:51820 [10.1.1.0/24]", two + " 198.51.100.2:51820 []"}},
		{"same key", []member{
			peer("c", "198.51.100.3", "10.1.2.0/24", "198.51.100.3/24", netannotation.WireGuardKeys{Key: one}),
			peer("b", "198.51.100.2", "10.1.1.0/24", "198.51.100.2/24", netannotation.WireGuardKeys{Key: one}),
		}, "[10.1.0.0/16 unreachable, 10.1.1.0/24 tunnel, 10.1.2.0/24 unreachable]", []string{one + " 198.51.100.2:51820 [10.1.1.0/24]"}},
	} {
		p := makeEncryptedPlan(self, c.peers, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
		text := ""
		for _, r := range p.routes {
			kind := "tunnel"
			if r.unreachable {
				kind = "unreachable"
			}
			if text != "" {
				text += ", "
			}
			text += fmt.Sprint(r.dst, " ", kind)
		}
		if got := "[" + text + "]"; got != c.routes {
			t.Errorf("%s: routes %s, want %s", c.name, got, c.routes)
		}
		var keys []string
		for _, p := range p.peers {
			keys = append(keys, fmt.Sprint(p.key, " ", p.endpoint, " ", p.allowed))
		}
		if !slices.Equal(keys, c.keys) {
			t.Errorf("%s: peers %q, want %q", c.name, keys, c.keys)
		}
	}
}
