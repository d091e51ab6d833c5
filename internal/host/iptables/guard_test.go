package iptables

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzRuleChanges checks that arbitrary messages do not cause a panic.
func FuzzRuleChanges(f *testing.F) {
	f.Add([]byte{28, 0, 0, 0, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 1, 0, 'n', 'a', 't', 0})
	f.Fuzz(func(_ *testing.T, data []byte) {
		g := NewGuard(0, nil, "KUBE-*", "HK-FORWARD")
		eachRuleChange(data, func(c ruleChange) { g.affects(c) })
	})
}

func TestAffects(t *testing.T) {
	const delTable, delChain, delRule = unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE
	g := NewGuard(0, nil, "HK-NP-*", "HK-FORWARD")
	for _, c := range []struct {
		change ruleChange
		want   bool
	}{
		{ruleChange{kind: delTable, family: unix.NFPROTO_IPV4, table: "nat"}, true},
		{ruleChange{kind: delTable, family: unix.NFPROTO_IPV4, table: "mine"}, false},
		{ruleChange{kind: delChain, family: unix.NFPROTO_IPV6, table: "mangle", chain: "HK-NP-X"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "HK-FORWARD"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "HK-FORWARDS"}, false},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "FORWARD"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "nat", chain: "KUBE-SERVICES"}, false},
	} {
		if got := g.affects(c.change); got != c.want {
			t.Errorf("%+v: %v", c.change, got)
		}
	}
}

func TestComplete(t *testing.T) {
	const rules = "*nat\n:HK-A - [0:0]\n:HK-B - [0:0]\n-A HK-A -j HK-B\n-I POSTROUTING 1 -j HK-A\nCOMMIT\n"
	for saved, want := range map[string]bool{
		"*nat\n:HK-A - [1:2]\n:HK-B - [0:0]\n-A HK-A -j HK-B\nCOMMIT\n":                  true,
		"*nat\n:HK-A - [1:2]\n:HK-B - [0:0]\n-A HK-A -j HK-B\n-A HK-B -j DROP\nCOMMIT\n": false,
		"*nat\n:HK-A - [1:2]\n:HK-B - [0:0]\nCOMMIT\n":                                   false,
		"*nat\n:HK-A - [1:2]\n-A HK-A -j HK-B\nCOMMIT\n":                                 false,
		"*filter\n:HK-A - [1:2]\n:HK-B - [0:0]\n-A HK-A -j HK-B\nCOMMIT\n":               false,
		"": false,
	} {
		if got := Complete(saved, rules); got != want {
			t.Errorf("%q: %v", saved, got)
		}
	}
}
