package packetfilter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/nftnl"
	"hyperkube/internal/testing/testnetns"
)

// asOther runs f on another thread in the network namespace of the calling thread, so that f changes rules like another
// program.
func asOther(t *testing.T, f func() error) {
	t.Helper()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread exits with its goroutine
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// change returns a function that changes objects of the table.
func change(add func(*encoder)) func() error {
	return func() error {
		e := &encoder{family: IPv4}
		add(e)
		return e.Send()
	}
}

// allRules contains a rule with each match and target.
func allRules(family Family) Ruleset {
	pod, ranges := netip.MustParseAddr("10.0.0.1"), netip.MustParsePrefix("10.0.0.0/20")
	if family == IPv6 {
		pod, ranges = netip.MustParseAddr("fd00::1"), netip.MustParsePrefix("fd00::/68")
	}
	forward, post, pre := Chain{Filter, "FORWARD"}, Chain{NAT, "POSTROUTING"}, Chain{NAT, "PREROUTING"}
	return Ruleset{
		Chains: Chains{
			{Filter, "HK-A"}: {
				{Comment: strings.Repeat("long ", 51), In: Link{Name: "eth0"}, Out: Link{Name: "hk+", Not: true}, Target: "HK-B"},
				{SrcLocal: true, DstLocal: true, Target: Return},
				{Conn: ConnState{States: Related | Established | Translated, Not: true}, Target: Drop},
				{Conn: ConnState{States: New | Translated}, Target: Accept},
				{OrigDst: netip.AddrPortFrom(pod, 80), Protocol: "tcp", Target: Accept},
				{OrigDst: netip.AddrPortFrom(pod, 0), Target: Accept},
				{Mark: Mark{Bits: 0x4000, Not: true}, OneIn: 3, Target: Reject},
				{Src: In(ranges), Dst: NotIn(ranges), Protocol: "sctp", Ports: Ports{80, 90}, Target: Drop},
			},
			{Filter, "HK-B"}: {
				{Dst: Is(pod), Protocol: "tcp", Ports: Ports{First: 80}, Target: Reject},
				{Dst: Is(pod), Protocol: "udp", Ports: Ports{First: 80}, Target: Drop},
				{Dst: Is(pod), Protocol: "tcp", Ports: Ports{First: 81}, Target: Accept},
				{Dst: Is(pod.Next()), Target: Return}, {Dst: Is(pod), Target: Accept},
			},
			{NAT, "HK-DNAT"}: {
				{Protocol: "tcp", Recent: Recent{List: "HK-DNAT", Within: 10}, Target: Return},
				{Protocol: "tcp", Recent: Recent{List: "HK-DNAT", Within: 10, Record: true}, Target: DNAT, To: netip.AddrPortFrom(pod, 80)},
				{Target: MARK, SetMark: 1}, {Target: MARK, ToggleMark: 2},
			},
			{NAT, "HK-SNAT"}: {{Src: Is(pod), Target: Masquerade, RandomPorts: true}, {Target: Masquerade}},
			{Mangle, "HK-MSS"}: {
				{Protocol: "tcp", SYN: true, Target: ClampMSS},
			},
		},
		Jumps: []Jump{
			{From: forward, Place: First, Rule: Rule{Comment: "a", Conn: ConnState{States: New}, Target: "HK-A"}},
			{From: pre, Place: Last, Rule: Rule{Comment: "b", DstLocal: true, Target: "HK-DNAT"}},
			{From: post, Place: Last, Rule: Rule{Comment: "c", Target: "HK-SNAT"}},
			{From: Chain{Mangle, "POSTROUTING"}, Place: First, Rule: Rule{Comment: "d", Target: "HK-MSS"}},
		},
	}
}

// TestNFTables checks that the kernel accepts all rules, that a second process recognizes them, and that the journal
// contains what is needed to remove them.
func TestNFTables(t *testing.T) {
	testnetns.Enter(t)
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []Family{IPv4, IPv6} {
		set := allRules(family)
		w := NewWriter(Config{Mode: NFTables, Shared: []Chain{{NAT, "HK-SHARED"}}, Journal: journal})
		if err := w.Sync(t.Context(), family, set); err != nil {
			t.Fatal(err)
		}
		again := NewWriter(Config{Mode: NFTables, Shared: []Chain{{NAT, "HK-SHARED"}}})
		for range 2 {
			if missing, err := again.Missing(t.Context(), family, set); err != nil || missing || w.Lost(t.Context()) {
				t.Errorf("rules are missing: %t, %v", missing, err)
			}
			if err := again.Sync(t.Context(), family, set); err != nil {
				t.Fatal(err)
			}
		}
		less := set
		less.Chains = Chains{{Filter, "HK-A"}: nil, {Filter, "HK-B"}: set.Chains[Chain{Filter, "HK-B"}][2:4]}
		if missing, err := again.Missing(t.Context(), family, less); err != nil || !missing {
			t.Errorf("other rules seem to be there: %v", err)
		}
	}
	changes, err := hostjournal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := hostjournal.Revert(t.Context(), changes, Undo()); err != nil {
			t.Error(err)
		}
	}
	for _, family := range []Family{IPv4, IPv6} {
		left := 0
		if err := nftnl.List(unix.NFT_MSG_GETTABLE, nftFamily(family), nil, func([]byte) { left++ }); err != nil || left > 0 {
			t.Errorf("%d tables are left: %v", left, err)
		}
	}
}

// TestNFTablesJumps checks the order of jumps of several users.
func TestNFTablesJumps(t *testing.T) {
	testnetns.Enter(t)
	forward := Chain{Filter, "FORWARD"}
	sync := func(place Place, targets ...string) {
		t.Helper()
		set := Ruleset{Chains: Chains{}}
		for _, target := range targets {
			set.Chains[Chain{Filter, target}] = nil
			set.Jumps = append(set.Jumps, Jump{From: forward, Place: place, Rule: Rule{Comment: "c", Target: target}})
		}
		if err := NewWriter(Config{Mode: NFTables}).Sync(t.Context(), IPv4, set); err != nil {
			t.Fatal(err)
		}
	}
	want := func(targets string) {
		t.Helper()
		state, err := nftables{}.Read(t.Context(), IPv4)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, rule := range state.BuiltIn[forward] {
			have = append(have, rule.Target)
		}
		if got := strings.Join(have, " "); got != targets {
			t.Errorf("order %s, want %s", got, targets)
		}
	}
	sync(AfterServices, "HK-AFTER")
	sync(Last, "HK-LAST1", "HK-LAST2")
	want("HK-AFTER HK-LAST1 HK-LAST2")
	sync(First, "KUBE-1", "KUBE-2")
	want("KUBE-1 KUBE-2 HK-AFTER HK-LAST1 HK-LAST2")
	sync(First, "KUBE-2", "KUBE-1")
	want("KUBE-2 KUBE-1 HK-AFTER HK-LAST1 HK-LAST2")
	sync(First, "KUBE-1", "KUBE-2")
	sync(AfterServices, "HK-AFTER2", "HK-AFTER")
	want("KUBE-1 KUBE-2 HK-AFTER2 HK-AFTER HK-LAST1 HK-LAST2")
}

// TestNFTablesRandom changes rules at random and checks that the kernel then has the desired ones.
func TestNFTablesRandom(t *testing.T) {
	testnetns.Enter(t)
	rng := rand.New(rand.NewPCG(3, 4))
	w := NewWriter(Config{Mode: NFTables, Objects: []Chain{{NAT, "HK-X-*"}}})
	for range 300 {
		set := Ruleset{Chains: Chains{{NAT, "HK-FIXED"}: nil}}
		for i := range 4 {
			if rng.IntN(3) == 0 {
				continue
			}
			set.Chains[Chain{NAT, fmt.Sprintf("HK-X-%d", i)}] = randomRules(rng, i)
		}
		for i := range rng.IntN(4) {
			target := "HK-FIXED"
			if _, exists := set.Chains[Chain{NAT, "HK-X-0"}]; exists && rng.IntN(2) == 0 {
				target = "HK-X-0"
			}
			set.Chains[Chain{NAT, "HK-FIXED"}] = append(set.Chains[Chain{NAT, "HK-FIXED"}], Rule{Dst: Is(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})), Target: target2(target, rng)})
		}
		switch rng.IntN(10) {
		case 0:
			w = NewWriter(Config{Mode: NFTables, Objects: []Chain{{NAT, "HK-X-*"}}}) // another process
		case 1:
			asOther(t, change(func(e *encoder) { e.begin(unix.NFT_MSG_DELTABLE, 0) }))
			if !w.Lost(t.Context()) {
				t.Fatal("the removal of the table is not noticed")
			}
			w.Forget(IPv4)
		}
		if err := w.Sync(t.Context(), IPv4, set); err != nil {
			t.Fatalf("%v\n%s", err, TextNFTables(IPv4, set.Chains))
		}
		state, err := nftables{}.Read(t.Context(), IPv4)
		if err != nil {
			t.Fatal(err)
		}
		if len(state.Rules) != len(set.Chains) || state.lacks(set.Chains, nil, nil) {
			t.Fatalf("the kernel has %v\n%s", state.Rules, TextNFTables(IPv4, set.Chains))
		}
		var maps, want []string
		for c := range set.Chains {
			maps = append(maps, state.sets.maps[c]...)
			want = append(want, mapsOf(c, compile(set.Chains[c]))...)
		}
		slices.Sort(maps)
		slices.Sort(want)
		if !slices.Equal(maps, want) {
			t.Fatalf("the kernel has maps %v, want %v", maps, want)
		}
		for list := range state.sets.recent {
			if !slices.ContainsFunc(set.Chains[Chain{NAT, list}], func(r Rule) bool { return r.Recent.Record }) {
				t.Fatalf("list %s is left", list)
			}
		}
	}
}

// target2 returns target, or at random the verdict to accept a packet.
func target2(target string, rng *rand.Rand) string {
	if target == "HK-FIXED" || rng.IntN(2) == 0 { // no loops
		return Accept
	}
	return target
}

// randomRules returns rules of the chain HK-X-i without jumps.
func randomRules(rng *rand.Rand, i int) []Rule {
	var rules []Rule
	for range rng.IntN(5) {
		r := Rule{Target: []string{Accept, Return, Drop}[rng.IntN(3)]}
		if rng.IntN(3) > 0 {
			r.Src = Is(netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(6))}))
		}
		if rng.IntN(3) > 0 {
			r.Protocol, r.Ports.First = []string{"tcp", "udp"}[rng.IntN(2)], uint16(1+rng.IntN(4))
		}
		if rng.IntN(10) == 0 {
			r.Recent = Recent{List: fmt.Sprintf("HK-X-%d", i), Within: 60, Record: true}
		}
		rules = append(rules, r)
	}
	if rng.IntN(4) == 0 {
		n := minRandom + rng.IntN(3)
		for left := range n {
			rules = append(rules, Rule{OneIn: n - left, Target: Accept})
		}
	}
	return rules
}

// TestNFTablesGuard checks that the guard notices removals by other programs, and ignores the changes of its user.
func TestNFTablesGuard(t *testing.T) {
	testnetns.Enter(t)
	services, own := Chain{NAT, "KUBE-SERVICES"}, Chain{NAT, "KUBE-SVC-1"}
	set := Ruleset{
		Chains: Chains{services: nil, own: {{Target: Accept}}},
		Jumps:  []Jump{{From: Chain{NAT, "OUTPUT"}, Rule: Rule{Comment: "c", Target: services.Name}}},
	}
	for i := range 3 {
		set.Chains[services] = append(set.Chains[services], Rule{Dst: Is(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})), Target: own.Name})
	}
	w := NewWriter(Config{Mode: NFTables, Objects: []Chain{{NAT, "KUBE-SVC-*"}}, Guarded: []string{"KUBE-*"}, Period: time.Hour})
	if err := w.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	suspect, stopped := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(stopped)
		w.Run(ctx, suspect)
	}()
	defer func() { cancel(); <-stopped }()
	<-w.Ready()
	write := func(set Ruleset) {
		t.Helper()
		if err := w.Sync(t.Context(), IPv4, set); err != nil {
			t.Fatal(err)
		}
	}
	write(set)
	for name, remove := range map[string]func() error{
		"table": change(func(e *encoder) { e.begin(unix.NFT_MSG_DELTABLE, 0) }),
		"rules": change(func(e *encoder) { e.flush(own) }),
		"jump":  change(func(e *encoder) { e.flush(Chain{NAT, "OUTPUT"}) }),
		"element": change(func(e *encoder) {
			e.elements(unix.NFT_MSG_DELSETELEM, services, services.mapName(0), 0, compile(set.Chains[services])[0].entries[:1])
		}),
	} {
		fewer := Ruleset{Chains: Chains{services: set.Chains[services][:2], own: nil}, Jumps: set.Jumps}
		write(fewer)
		write(set)
		if w.Lost(t.Context()) {
			t.Errorf("%s: rules are missing before the removal", name)
		}
		asOther(t, remove)
		<-suspect // the test hangs if the removal is not noticed
		if !w.Lost(t.Context()) {
			t.Errorf("%s: the rules seem to be there", name)
		}
		write(set)
	}
	// Own changes, whose reports the guard has read when it has read that of the last removal.
	write(Ruleset{Chains: Chains{services: nil}, Jumps: set.Jumps})
	write(set)
	asOther(t, change(func(e *encoder) { e.flush(own) }))
	<-suspect
	select {
	case <-suspect:
		t.Error("own changes were taken for those of others")
	default:
	}
}

// TestModeChange checks that rules of the other mode are removed, and that SelectFor recognizes the mode.
func TestModeChange(t *testing.T) {
	testnetns.Enter(t)
	set := allRules(IPv4)
	for _, mode := range []Mode{IPTables, NFTables, IPTables} {
		if err := NewWriter(Config{Mode: mode, Shared: []Chain{{NAT, "HK-SHARED"}}}).Sync(t.Context(), IPv4, set); err != nil {
			t.Fatal(err)
		}
		patterns := append(sortedKeys(set.Chains), Chain{NAT, "HK-SHARED"})
		for _, m := range []Mode{IPTables, NFTables} {
			if has, err := m.has(IPv4, patterns); err != nil || has != (m == mode) {
				t.Errorf("%s after writing %s: %t, %v", m, mode, has, err)
			}
		}
		if got, err := Auto.SelectFor(t.Context(), patterns, nil); got != mode || err != nil {
			t.Errorf("%s is selected after writing %s: %v", got, mode, err)
		}
	}
}

func TestModeSelect(t *testing.T) {
	testnetns.Enter(t)
	for _, c := range []struct {
		path    string
		setting Mode
		want    Mode // empty means an error
	}{
		{"/usr/sbin:/usr/bin", "", IPTables}, {"/usr/sbin:/usr/bin", Auto, IPTables}, {"/usr/sbin:/usr/bin", NFTables, NFTables},
		{"/usr/sbin:/usr/bin", "ipvs", ""},
	} {
		t.Setenv("PATH", c.path)
		if got, err := c.setting.Select(t.Context(), nil); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: %q, %v", c.setting, got, err)
		}
	}
}
