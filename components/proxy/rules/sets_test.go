package rules

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"hyperkube/internal/host/packetfilter"
)

// randomPort returns a port of the Service n. Services with different n have different cluster IPs and node ports. They can
// have the same other addresses.
func randomPort(rng *rand.Rand, n int) *Port {
	p := web()
	p.Service, p.Endpoints, p.LocalEndpoints = fmt.Sprintf("s%d", n), nil, nil
	p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})
	p.LocalExternal, p.LocalInternal = rng.IntN(2) == 0, rng.IntN(2) == 0
	p.NodePort, p.HealthCheckPort = uint16(rng.IntN(2)*(30000+n)), uint16(rng.IntN(2)*(32000+n))
	p.Affinity = 10 * rng.IntN(2)
	some := func(network byte) (out []netip.Addr) {
		for i := range byte(4) {
			if rng.IntN(4) == 0 {
				out = append(out, netip.AddrFrom4([4]byte{192, 0, network, i}))
			}
		}
		return out
	}
	p.ExternalIPs, p.LoadBalancerIPs = some(2), some(3)
	for range rng.IntN(3) {
		p.SourceRanges = append(p.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rng.IntN(4))}), 8+rng.IntN(3)))
	}
	for i := range rng.IntN(4) {
		e := endpoint(fmt.Sprintf("10.244.0.%d:80", i+1))
		p.Endpoints = append(p.Endpoints, e)
		if rng.IntN(2) == 0 {
			p.LocalEndpoints = append(p.LocalEndpoints, e)
		}
	}
	p.HasAny = len(p.Endpoints) > 0
	return p
}

// elementsOf returns all elements by set and key.
func elementsOf(t *testing.T, set packetfilter.Ruleset) map[elementKey]packetfilter.Element {
	t.Helper()
	out := map[elementKey]packetfilter.Element{}
	for e := range set.Elements.All {
		if _, exists := out[elementKey{e.Set, e.Key}]; exists {
			t.Fatalf("element %q of %s occurs twice", e.Key, e.Set)
		}
		out[elementKey{e.Set, e.Key}] = e
	}
	return out
}

// TestDifferences changes Services at random, some of which have the same addresses, and checks that applying the differences
// yields all elements. Without Services that share addresses, these are also the elements that another translator returns.
func TestDifferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	translator := newSetTranslator()
	kernel := map[elementKey]packetfilter.Element{}
	services := map[int][]*Port{}
	cfg := Config{Pods: pods}
	for i := range 2000 {
		for range 1 + rng.IntN(2) {
			n := rng.IntN(6)
			before := services[n]
			delete(services, n)
			if rng.IntN(3) > 0 {
				p := randomPort(rng, n)
				if rng.IntN(20) == 0 {
					p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, 9}) // the same as that of another Service
				}
				services[n] = []*Port{p}
			}
			translator.Replace(before, services[n])
		}
		if rng.IntN(50) == 0 {
			cfg.NodeIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(rng.IntN(3)), 0, 1})}
		}
		set := translator.Build(cfg)
		if set.Elements.Rewrite {
			kernel = elementsOf(t, set)
		}
		for _, e := range set.Elements.Removed {
			if kernel[elementKey{e.Set, e.Key}] != e {
				t.Fatalf("step %d: removed element %+v does not exist", i, e)
			}
			delete(kernel, elementKey{e.Set, e.Key})
		}
		for _, e := range set.Elements.Added {
			if old, exists := kernel[elementKey{e.Set, e.Key}]; exists {
				t.Fatalf("step %d: added element %+v exists: %+v", i, e, old)
			}
			kernel[elementKey{e.Set, e.Key}] = e
		}
		if all := elementsOf(t, set); !maps.Equal(kernel, all) {
			t.Fatalf("step %d: after the differences\n%v\nwant\n%v", i, kernel, all)
		}
		fresh := newSetTranslator()
		for _, n := range slices.Sorted(maps.Keys(services)) {
			fresh.Replace(nil, services[n])
		}
		whole := fresh.Build(cfg)
		if len(translator.waiting) == 0 && !maps.Equal(kernel, elementsOf(t, whole)) {
			t.Fatalf("step %d: another translator has\n%v\nwant\n%v", i, elementsOf(t, whole), kernel)
		}
		if a, b := slices.Sorted(maps.Keys(chainNames(set))), slices.Sorted(maps.Keys(chainNames(whole))); len(translator.waiting) == 0 && !slices.Equal(a, b) {
			t.Fatalf("step %d: chains %v, want %v", i, a, b)
		}
	}
	for _, ports := range services {
		translator.Replace(ports, nil)
	}
	if set := translator.Build(cfg); len(elementsOf(t, set)) != len(staticElements()) || len(translator.owners)+len(translator.waiting)+len(translator.lengths) > 0 {
		t.Errorf("without Services %v are left", elementsOf(t, set))
	}
}

func chainNames(set packetfilter.Ruleset) map[string]bool {
	out := map[string]bool{}
	for c := range set.Chains {
		out[c.String()] = true
	}
	return out
}

// TestUnchanged checks that a Service that does not change causes no difference.
func TestUnchanged(t *testing.T) {
	translator := newSetTranslator()
	rng := rand.New(rand.NewPCG(1, 2))
	translator.Replace(nil, []*Port{randomPort(rng, 1)})
	first := translator.Build(Config{})
	before := web()
	translator.Replace(nil, []*Port{before})
	translator.Build(Config{})
	translator.Replace([]*Port{before}, []*Port{web()})
	set := translator.Build(Config{})
	if n := len(set.Elements.Added) + len(set.Elements.Removed); n > 0 || set.Elements.Rewrite || !first.Elements.Rewrite {
		t.Errorf("%d differences", n)
	}
	for c, rules := range first.Chains {
		if len(rules) > 0 && &rules[0] != &set.Chains[c][0] {
			t.Errorf("chain %s was built again", c)
		}
	}
}
