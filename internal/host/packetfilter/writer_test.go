package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/host/hostjournal"
)

func TestText(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{Target: Drop}, "-j DROP"},
		{Rule{Conn: ConnState{States: Related | Established}, Target: Accept}, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{Rule{Src: In(netip.MustParsePrefix("10.0.0.1/32")), Protocol: "tcp", Ports: Ports{First: 80, Last: 80}, Target: Accept}, "-s 10.0.0.1/32 -p tcp -m tcp --dport 80 -j ACCEPT"},
		{Rule{Dst: In(netip.MustParsePrefix("fd00::/64")), Protocol: "sctp", Ports: Ports{80, 90}, Target: "X"}, "-d fd00::/64 -p sctp -m sctp --dport 80:90 -j X"},
		{Rule{In: Link{Name: "a"}, Target: "X"}, "-i a -j X"},
		{Rule{Out: Link{Name: "b", Not: true}, Target: "X"}, "! -o b -j X"},
		{Rule{Protocol: "udp", Target: Return}, "-p udp -j RETURN"},
		{Rule{Comment: "a b", DstLocal: true, Target: "X"}, `-m comment --comment "a b" -m addrtype --dst-type LOCAL -j X`},
		{Rule{Protocol: "tcp", SYN: true, Out: Link{Name: "t"}, Target: ClampMSS}, "-o t -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"},
	} {
		if got := c.rule.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestJournal checks the entries of the journal, which contain arguments without quotes.
func TestJournal(t *testing.T) {
	set := Ruleset{
		Chains: Chains{{NAT, "HK-HOSTPORTS"}: nil},
		Jumps:  []Jump{{From: Chain{NAT, "OUTPUT"}, Rule: Rule{Comment: "host ports", DstLocal: true, Target: "HK-HOSTPORTS"}, Place: Last}},
	}
	want := []hostjournal.Change{
		{Kind: hostjournal.Chain, Name: "6 nat HK-HOSTPORTS"},
		{Kind: hostjournal.Rule, Name: "6 nat OUTPUT", Args: []string{"-m", "comment", "--comment", "host ports", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "HK-HOSTPORTS"}},
	}
	if got := set.Changes(IPTables, IPv6); !slices.EqualFunc(got, want, equalChange) {
		t.Errorf("%q", got)
	}
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	kernel := &kernel{chains: map[Chain][]string{}}
	w := NewWriter(Config{
		Journal: journal, Backend: kernel, Objects: []Chain{{NAT, "HK-X-*"}}, Shared: []Chain{{NAT, "HK-SHARED"}}, Foreign: []Chain{{NAT, "HK-FOREIGN"}},
	})
	set.Chains[Chain{NAT, "HK-X-1"}] = nil
	set.Chains[Chain{NAT, "HK-FOREIGN"}] = []Rule{{Target: Drop}}
	for range 2 {
		if err := w.Sync(t.Context(), IPv6, set); err != nil {
			t.Fatal(err)
		}
		w.Forget(IPv6)
	}
	got, err := hostjournal.Read(path)
	if err := errors.Join(err, journal.Close()); err != nil {
		t.Fatal(err)
	}
	want = slices.Insert(want, 1, hostjournal.Change{Kind: hostjournal.Chain, Name: "6 nat HK-X-*"}, hostjournal.Change{Kind: hostjournal.Chain, Name: "6 nat HK-SHARED"})
	if !slices.EqualFunc(got, want, equalChange) {
		t.Errorf("the journal has %q", got)
	}
}

func equalChange(a, b hostjournal.Change) bool {
	return a.Kind == b.Kind && a.Name == b.Name && slices.Equal(a.Args, b.Args)
}

// kernel is a backend that emulates iptables-restore.
type kernel struct {
	chains map[Chain][]string
	inputs []string // of iptables-restore
	reads  int
	err    error // of the next change
}

func (k *kernel) Read(context.Context, Family) (*State, error) {
	k.reads++
	var saved strings.Builder
	for _, table := range tables() {
		fmt.Fprintf(&saved, "*%s\n", table)
		for chain := range k.chains {
			if chain.Table == table {
				fmt.Fprintf(&saved, ":%s - [0:0]\n", chain.Name)
			}
		}
		for chain, rules := range k.chains {
			for _, rule := range rules {
				if chain.Table == table {
					fmt.Fprintf(&saved, "-A %s %s\n", chain.Name, rule)
				}
			}
		}
		saved.WriteString("COMMIT\n")
	}
	return ParseState(saved.String()), nil
}

func (k *kernel) Apply(_ context.Context, _ Family, change Change) error {
	if err := k.err; err != nil {
		k.err = nil
		return err
	}
	input := change.String()
	k.inputs = append(k.inputs, input)
	var table Table
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		name, rest, _ := strings.Cut(line, " ")
		chain := Chain{Table: table}
		chain.Name, rest, _ = strings.Cut(rest, " ")
		_, exists := k.chains[chain]
		if !exists && name[0] == '-' && !builtIn(chain.Name) {
			return fmt.Errorf("%s: no chain", line)
		}
		switch {
		case line[0] == '*':
			table = Table(line[1:])
		case line == "COMMIT":
		case line[0] == ':':
			k.chains[Chain{table, name[1:]}] = nil
		case name == "-A":
			k.chains[chain] = append(k.chains[chain], rest)
		case name == "-X":
			delete(k.chains, chain)
		case name == "-D":
			at := slices.Index(k.chains[chain], rest)
			if at < 0 {
				return fmt.Errorf("%s: no rule", line)
			}
			k.chains[chain] = slices.Delete(k.chains[chain], at, at+1)
		case name == "-I":
			var at int
			number, rule, _ := strings.Cut(rest, " ")
			if _, err := fmt.Sscan(number, &at); err != nil || at > len(k.chains[chain])+1 {
				return fmt.Errorf("%s: %w", line, err)
			}
			k.chains[chain] = slices.Insert(k.chains[chain], at-1, rule)
		default:
			return fmt.Errorf("unknown line %q", line)
		}
	}
	return nil
}

// TestDifference checks that only what differs is written.
func TestDifference(t *testing.T) {
	a, b, c, policy := Chain{Mangle, "HK-NP-A"}, Chain{Mangle, "HK-NP-B"}, Chain{Mangle, "HK-NP-C"}, Chain{Mangle, "HK-POLICY"}
	k := &kernel{chains: map[Chain][]string{a: {"-j DROP"}, b: {"-j ACCEPT"}, policy: nil, {Mangle, "THEIRS"}: nil}}
	w := NewWriter(Config{Objects: []Chain{{Mangle, "HK-NP-*"}}, Foreign: []Chain{policy}, Backend: k})
	drop := []Rule{{Target: Drop}}
	for _, step := range []struct {
		want  Chains
		input string
	}{
		// The rules of an earlier process are not known.
		{Chains{a: drop, b: drop, policy: nil}, "*mangle\n:HK-NP-A - [0:0]\n:HK-NP-B - [0:0]\n-A HK-NP-A -j DROP\n-A HK-NP-B -j DROP\nCOMMIT\n"},
		{Chains{a: drop, c: drop, policy: nil}, "*mangle\n:HK-NP-C - [0:0]\n:HK-NP-B - [0:0]\n-A HK-NP-C -j DROP\n-X HK-NP-B\nCOMMIT\n"},
		{Chains{a: slices.Clone(drop), c: drop, policy: nil}, ""},
	} {
		if err := w.Sync(t.Context(), IPv4, Ruleset{Chains: step.want}); err != nil {
			t.Fatal(err)
		}
		if got := k.inputs[len(k.inputs)-1]; got != step.input {
			t.Errorf("wrote %q, want %q", got, step.input)
		}
	}
	if k.reads != 1 {
		t.Errorf("read %d times", k.reads)
	}
}

// TestRandom changes rules at random, also behind the back of the writer, and checks that the kernel
// then has the desired ones.
func TestRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	forward := Chain{Filter, "FORWARD"}
	for range 200 {
		k := &kernel{chains: map[Chain][]string{forward: nil}}
		for range rng.IntN(4) {
			k.chains[forward] = append(k.chains[forward], "-j "+[]string{"THEIRS", "KUBE-FORWARD", "HK-FIXED", "DROP"}[rng.IntN(4)])
		}
		k.chains[Chain{Filter, "HK-7"}] = []string{"-j DROP"}
		w := NewWriter(Config{Objects: []Chain{{Filter, "HK-?"}, {Filter, "HK-*"}}, Shared: []Chain{{NAT, "HK-SHARED"}}, Backend: k})
		set := Ruleset{Jumps: []Jump{{From: forward, Rule: Rule{Comment: "c", Target: "HK-FIXED"}, Place: Place(rng.IntN(3))}}}
		for range 20 {
			set.Chains = Chains{{Filter, "HK-FIXED"}: nil}
			for n := range rng.IntN(5) {
				var rules []Rule
				for range rng.IntN(3) {
					rules = append(rules, Rule{OneIn: 2 + rng.IntN(2), Target: Accept})
				}
				set.Chains[Chain{Filter, fmt.Sprintf("HK-%d", n)}] = rules
			}
			switch rng.IntN(6) {
			case 0:
				k.chains[forward] = nil
			case 1:
				delete(k.chains, Chain{Filter, "HK-0"})
			case 2:
				k.chains[forward] = append(k.chains[forward], "-j KUBE-FORWARD")
			case 3:
				k.err = errors.New("broken")
				if err := w.Sync(t.Context(), IPv4, set); err == nil || w.Current(IPv4) {
					t.Fatal("an error is not reported")
				}
			}
			w.Lost(t.Context())
			if err := w.Sync(t.Context(), IPv4, set); err != nil {
				t.Fatal(err)
			}
			have := maps.Clone(k.chains)
			delete(have, forward)
			delete(have, Chain{NAT, "HK-SHARED"})
			want := map[Chain][]string{}
			for chain, rules := range set.Chains {
				for _, rule := range rules {
					want[chain] = append(want[chain], rule.String())
				}
				want[chain] = append([]string(nil), want[chain]...)
			}
			if !maps.EqualFunc(have, want, slices.Equal) {
				t.Fatalf("the kernel has %v, want %v", have, want)
			}
			ours, services := slices.IndexFunc(k.chains[forward], func(r string) bool { return strings.HasSuffix(r, "-j HK-FIXED") }), slices.Index(k.chains[forward], "-j KUBE-FORWARD")
			if ours < 0 || set.Jumps[0].Place == AfterServices && ours < services || w.Lost(t.Context()) {
				t.Fatalf("%d: the built-in chain has %v", set.Jumps[0].Place, k.chains[forward])
			}
			if n := len(slices.DeleteFunc(slices.Clone(k.chains[forward]), func(r string) bool { return !strings.HasSuffix(r, "-j HK-FIXED") })); n > 4 {
				t.Fatalf("%d jumps", n)
			}
		}
	}
}

// TestRace checks that jumps behind those of a service proxy are moved if the proxy inserts its own
// between reading and writing the rules.
func TestRace(t *testing.T) {
	input := Chain{Filter, "INPUT"}
	k := &racing{kernel: kernel{chains: map[Chain][]string{input: {"-j THEIRS"}}}}
	w := NewWriter(Config{Backend: k})
	set := Ruleset{Chains: Chains{{Filter, "HK-INPUT"}: nil}, Jumps: []Jump{{From: input, Rule: Rule{Comment: "c", Target: "HK-INPUT"}, Place: AfterServices}}}
	if err := w.Sync(t.Context(), IPv4, set); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(k.chains[input], " "); got != `-j KUBE-NODEPORTS -m comment --comment "c" -j HK-INPUT -j THEIRS` {
		t.Errorf("%s", got)
	}
	if k.reads != 3 || len(k.inputs) != 2 {
		t.Errorf("read %d times, wrote %q", k.reads, k.inputs)
	}
}

// racing is a kernel in which a service proxy inserts a jump directly before the first change.
type racing struct{ kernel }

func (k *racing) Apply(ctx context.Context, family Family, change Change) error {
	if len(k.inputs) == 0 {
		k.chains[Chain{Filter, "INPUT"}] = slices.Insert(k.chains[Chain{Filter, "INPUT"}], 0, "-j KUBE-NODEPORTS")
	}
	return k.kernel.Apply(ctx, family, change)
}
