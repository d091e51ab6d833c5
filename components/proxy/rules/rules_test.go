package rules

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
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

// text returns the rules of all chains, sorted.
func text(t Table) string {
	var out []string
	for chain, rules := range t {
		for _, rule := range rules {
			out = append(out, "-A "+chain+" "+rule)
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
		nat, filter := text(set.NAT), text(set.Filter)
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
			if _, made := set.NAT["KUBE-"+to]; ok && !made {
				t.Errorf("%s: a jump to nowhere: %s", c.name, line)
			}
		}
	}
}

// apply emulates iptables-restore.
func apply(t *testing.T, set Set, input string) {
	t.Helper()
	var table Table
	for line := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
		switch {
		case line == "*nat":
			table = set.NAT
		case line == "*filter":
			table = set.Filter
		case line == "COMMIT" || line == "":
		case line[0] == ':':
			table[strings.Fields(line[1:])[0]] = nil
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[3:], " ")
			if _, ok := table[chain]; !ok {
				t.Fatalf("a rule for a chain that is not there: %s", line)
			}
			table[chain] = append(table[chain], rule)
		case strings.HasPrefix(line, "-X "):
			delete(table, line[3:])
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
}

// TestRestoreAgainstWhole changes services at random and checks that applying the differences
// yields the same chains as building them from scratch.
func TestRestoreAgainstWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	kernel := Set{NAT: Table{}, Filter: Table{}}
	before := Set{}
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
		after := Build(Config{Pods: pods}, ports)
		apply(t, kernel, Restore(before, after))
		if !reflect.DeepEqual(clean(kernel), clean(after)) {
			t.Fatalf("kernel has\n%v\nwant\n%v", kernel, after)
		}
		before = after
	}
	if Restore(before, before) != "" {
		t.Error("nothing changed, but something is written")
	}
}

func clean(s Set) Set {
	for _, table := range []Table{s.NAT, s.Filter} {
		for chain, rules := range table {
			if len(rules) == 0 {
				table[chain] = nil
			}
		}
	}
	return s
}

func TestLeftover(t *testing.T) {
	set := Leftover("*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-ABC - [0:0]\n:MINE - [0:0]\nCOMMIT\n*filter\n:KUBE-FW-X - [1:2]\nCOMMIT\n")
	if len(set.NAT) != 1 || len(set.Filter) != 1 || set.NAT["KUBE-SVC-ABC"] == nil {
		t.Errorf("got %v", set)
	}
}

func BenchmarkBuild1000(b *testing.B) {
	var ports []*Port
	for i := range 1000 {
		p := web()
		p.Service = fmt.Sprintf("s%d", i)
		ports = append(ports, p)
	}
	for b.Loop() {
		Build(Config{Pods: pods}, ports)
	}
}
