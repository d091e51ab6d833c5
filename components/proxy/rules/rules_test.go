package rules

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/host/packetfilter"
)

func endpoint(address string) Endpoint { return Endpoint{Address: netip.MustParseAddrPort(address)} }

func web() *Port {
	return &Port{
		Namespace: "default", Service: "web", Name: "http", Protocol: "tcp",
		ClusterIP: netip.MustParseAddr("10.96.0.7"), Port: 80, HasAny: true,
		Endpoints:      []Endpoint{endpoint("10.244.0.5:8080"), endpoint("10.244.1.5:8080")},
		LocalEndpoints: []Endpoint{endpoint("10.244.0.5:8080")},
	}
}

var pods = FromRange(netip.MustParsePrefix("10.244.0.0/16"))

// text returns the rules of all chains of a table, sorted.
func text(set packetfilter.Ruleset, table packetfilter.Table) string {
	var out []string
	for chain, rules := range set.Chains {
		for _, rule := range rules {
			if chain.Table == table {
				out = append(out, "-A "+chain.Name+" "+rule.String())
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestBuild(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(p *Port)
		nat, filter []string // expected rules
		not         []string // rules that must be in neither table
	}{
		{"cluster IP", func(*Port) {}, []string{
			`-A KUBE-SERVICES -m comment --comment "default/web:http cluster IP" -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-`,
			`! -s 10.244.0.0/16 -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ`,
			`-m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-`,
			`-s 10.244.0.5/32 -j KUBE-MARK-MASQ`,
			`-p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080`,
		}, nil, []string{"KUBE-EXT-", "REJECT", "KUBE-SVL-"}},
		{"no endpoints", func(p *Port) { p.Endpoints, p.LocalEndpoints, p.HasAny = nil, nil, false }, nil,
			[]string{`"default/web:http has no endpoints" -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j REJECT`},
			[]string{"KUBE-SEP-", "KUBE-SVC-"}},
		{"node port", func(p *Port) { p.NodePort = 30080 }, []string{
			`-A KUBE-NODEPORTS -m comment --comment "default/web:http" -p tcp -m tcp --dport 30080 -j KUBE-EXT-`,
			`"default/web:http masquerade traffic for external destinations" -j KUBE-MARK-MASQ`,
		}, nil, nil},
		{"local external", func(p *Port) { p.NodePort, p.LocalExternal = 30080, true }, []string{
			`-s 10.244.0.0/16 -j KUBE-SVC-`, `-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ`, `-A KUBE-SVL-`,
		}, nil, []string{"masquerade traffic for external"}},
		{"local external, none here", func(p *Port) {
			p.NodePort, p.LocalExternal, p.LocalEndpoints = 30080, true, nil
		}, []string{`-m addrtype --src-type LOCAL -j KUBE-SVC-`},
			[]string{`"default/web:http has no local endpoints" -m addrtype --dst-type LOCAL -p tcp -m tcp --dport 30080 -j DROP`}, []string{"KUBE-SVL-"}},
		{"local internal", func(p *Port) { p.LocalInternal = true }, []string{`cluster IP" -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j KUBE-SVL-`},
			nil, []string{"KUBE-SVC-", "statistic"}},
		{"affinity", func(p *Port) { p.Affinity = 60 }, []string{"--rcheck --seconds 60 --reap -j KUBE-SEP-", "--set -p tcp -m tcp -j DNAT"}, nil, nil},
		{"external IP", func(p *Port) { p.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} },
			[]string{`external IP" -d 192.0.2.9/32 -p tcp -m tcp --dport 80 -j KUBE-EXT-`}, nil, nil},
		{"source ranges", func(p *Port) {
			p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
			p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}, nil, []string{"-s 198.51.100.0/24 -j RETURN", "-s 192.0.2.9/32 -j RETURN", "-j DROP", "-m conntrack --ctorigdst 192.0.2.9 --ctorigdstport 80 -j KUBE-FW-"}, nil},
		{"source ranges without the node", func(p *Port) {
			p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
			p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		}, nil, []string{"-s 203.0.113.0/24 -j RETURN"}, []string{"-s 192.0.2.9/32 -j RETURN"}},
		{"local, one going here, ready ones elsewhere", func(p *Port) {
			p.NodePort, p.LocalExternal, p.Endpoints = 30080, true, p.Endpoints[1:]
		}, []string{"-A KUBE-SVL-", "--to-destination 10.244.0.5:8080", "--to-destination 10.244.1.5:8080"}, nil, []string{"statistic", "no local endpoints"}},
		{"health check port", func(p *Port) { p.HealthCheckPort = 31000 }, nil,
			[]string{`-A KUBE-NODEPORTS -m comment --comment "default/web:http health check node port" -p tcp -m tcp --dport 31000 -j ACCEPT`}, nil},
	} {
		p := web()
		c.change(p)
		set := Build(Config{Pods: pods, LocalhostNodePorts: true, NodeIPs: []netip.Addr{netip.MustParseAddr("198.51.100.7")}}, []*Port{p})
		nat, filter := text(set, packetfilter.NAT), text(set, packetfilter.Filter)
		for _, want := range c.nat {
			if !strings.Contains(nat, want) {
				t.Errorf("%s: nat lacks %s\n%s", c.name, want, nat)
			}
		}
		for _, want := range c.filter {
			if !strings.Contains(filter, want) {
				t.Errorf("%s: filter lacks %s\n%s", c.name, want, filter)
			}
		}
		for _, not := range c.not {
			if strings.Contains(nat+filter, not) {
				t.Errorf("%s: %s is there\n%s\n%s", c.name, not, nat, filter)
			}
		}
		// Every chain that is the target of a jump must exist.
		for line := range strings.SplitSeq(nat, "\n") {
			_, to, ok := strings.Cut(line, " -j KUBE-")
			if _, made := set.Chains[packetfilter.Chain{Table: packetfilter.NAT, Name: "KUBE-" + to}]; ok && !made {
				t.Errorf("%s: a jump to nowhere: %s", c.name, line)
			}
		}
	}
}

// memory is a backend that keeps rules in memory.
type memory struct {
	chains  packetfilter.Chains
	changes []packetfilter.Change
}

func (m *memory) Read(context.Context, packetfilter.Family) (*packetfilter.State, error) {
	state := &packetfilter.State{Rules: map[packetfilter.Chain]int{}}
	for chain, rules := range m.chains {
		state.Rules[chain] = len(rules)
	}
	return state, nil
}

func (m *memory) Apply(_ context.Context, _ packetfilter.Family, change packetfilter.Change) error {
	m.changes = append(m.changes, change)
	maps.Copy(m.chains, change.Replace)
	for _, chain := range change.Remove {
		delete(m.chains, chain)
	}
	return nil
}

// TestRestoreAgainstWhole changes services at random and checks that applying the differences
// yields the same chains as building them from scratch.
func TestRestoreAgainstWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	kernel := &memory{chains: packetfilter.Chains{}}
	writer := packetfilter.NewWriter(packetfilter.Config{Objects: ServiceChains(), Backend: kernel})
	var builder Builder
	services := map[int]*Port{}
	for range 300 {
		n := rng.IntN(8)
		if rng.IntN(4) == 0 {
			delete(services, n)
		} else {
			p := web()
			p.Service, p.Endpoints, p.LocalEndpoints = fmt.Sprintf("s%d", n), nil, nil
			p.LocalExternal, p.LocalInternal = rng.IntN(2) == 0, rng.IntN(2) == 0
			p.NodePort = uint16(rng.IntN(2) * (30000 + n))
			for i := range rng.IntN(4) {
				p.Endpoints = append(p.Endpoints, endpoint(fmt.Sprintf("10.244.0.%d:80", i+1)))
				if rng.IntN(2) == 0 {
					p.LocalEndpoints = append(p.LocalEndpoints, endpoint(fmt.Sprintf("10.244.0.%d:80", i+1+rng.IntN(2)*10)))
				}
			}
			p.HasAny = len(p.Endpoints) > 0
			services[n] = p
		}
		var ports []*Port
		for _, key := range slices.Sorted(maps.Keys(services)) {
			ports = append(ports, services[key])
		}
		after := builder.Build(Config{Pods: pods}, ports)
		if whole := Build(Config{Pods: pods}, ports); !maps.EqualFunc(whole.Chains, after.Chains, slices.Equal) {
			t.Fatalf("after changes\n%v\nfrom scratch\n%v", after, whole)
		}
		if err := writer.Sync(t.Context(), packetfilter.IPv4, after); err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(kernel.chains, after.Chains, slices.Equal) {
			t.Fatalf("kernel has\n%v\nwant\n%v", kernel.chains, after.Chains)
		}
		if err := writer.Sync(t.Context(), packetfilter.IPv4, after); err != nil {
			t.Fatal(err)
		}
		if change := kernel.changes[len(kernel.changes)-1].String(); change != "" {
			t.Fatalf("nothing changed, but something is written: %s", change)
		}
	}
}

// TestLeftover checks that chains of services that an earlier proxy created are removed, and those of
// other programs are kept.
func TestLeftover(t *testing.T) {
	kernel := &memory{chains: packetfilter.Chains{}}
	for _, chain := range []packetfilter.Chain{
		{Table: packetfilter.NAT, Name: "PREROUTING"}, {Table: packetfilter.NAT, Name: "KUBE-SVC-ABC"}, {Table: packetfilter.NAT, Name: "MINE"},
		{Table: packetfilter.Filter, Name: "KUBE-FW-X"},
	} {
		kernel.chains[chain] = []packetfilter.Rule{{Target: packetfilter.Accept}}
	}
	writer := packetfilter.NewWriter(packetfilter.Config{Objects: ServiceChains(), Backend: kernel})
	if err := writer.Sync(t.Context(), packetfilter.IPv4, Build(Config{}, nil)); err != nil {
		t.Fatal(err)
	}
	var removed []string
	for _, chain := range kernel.changes[0].Remove {
		removed = append(removed, chain.String())
	}
	slices.Sort(removed)
	if got := strings.Join(removed, ", "); got != "filter KUBE-FW-X, nat KUBE-SVC-ABC" {
		t.Errorf("removed %s", got)
	}
}

func thousands(n int) []*Port {
	var ports []*Port
	for i := range n {
		p := web()
		p.Service = fmt.Sprintf("s%d", i)
		ports = append(ports, p)
	}
	return ports
}

func BenchmarkBuild1000(b *testing.B) {
	ports := thousands(1000)
	b.ReportAllocs()
	for b.Loop() {
		Build(Config{Pods: pods}, ports)
	}
}

// BenchmarkUpdate10000 measures the CPU time of adding and removing one of 10,000 services, without
// the programs that write the rules.
func BenchmarkUpdate10000(b *testing.B) {
	ports := thousands(10000)
	kernel := &memory{chains: packetfilter.Chains{}}
	writer := packetfilter.NewWriter(packetfilter.Config{Objects: ServiceChains(), Backend: kernel})
	var builder Builder
	sync := func(ports []*Port) {
		if err := writer.Sync(b.Context(), packetfilter.IPv4, builder.Build(Config{Pods: pods}, ports)); err != nil {
			b.Fatal(err)
		}
	}
	sync(ports)
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		kernel.changes = nil
		sync(ports[:len(ports)-i%2])
		_ = kernel.changes[0].String()
	}
}
