package packetfilter

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/nftnl"
	"hyperkube/internal/testing/testnetns"
)

// withSets returns a Ruleset with sets of all kinds and a program with all operations. The elements are those of n addresses.
func withSets(family Family, n int) Ruleset {
	services, balance := Chain{NAT, "KUBE-SERVICES"}, Chain{NAT, "KUBE-BALANCE"}
	words := Address.words(family)
	at := func(do Action, register int) Operation { return Operation{Do: do, At: register} }
	program := func(operations ...Operation) *Program { return &Program{operations} }
	key := []Operation{at(LoadSource, 0), at(LoadProtocol, words), at(LoadPort, words+1)}
	value := words + 2
	set := Ruleset{
		Chains: Chains{
			services: {
				{Program: program(append(key, Operation{Do: Find, Set: "A", To: value}, Operation{Do: LoadNumber, At: 0, Number: 7}, Operation{Do: Decide, Set: "V"})...)},
				{Program: program(at(LoadOriginalDestination, 0), at(LoadProtocol, words), at(LoadOriginalPort, words+1), Operation{Do: Missing, Set: "S"}), Target: Return},
			},
			balance: {
				{Program: program(at(LoadZeroAddress, 0), Operation{Do: LoadRandom, At: words, Number: 3}, at(LoadDestination, 0), Operation{Do: MaskAddress, Number: 9}, at(LoadProtocol, words), at(LoadPort, words+1), Operation{Do: Contained, Set: "S"},
					Operation{Do: Find, Set: "A", To: value}, Operation{Do: Remember, Set: "R", To: value, Number: 60}, at(Translate, value))},
				{Program: program(append(key, Operation{Do: Forget, Set: "R"})...)},
			},
		},
		Jumps: []Jump{{From: Chain{NAT, "OUTPUT"}, Rule: Rule{Comment: "c", Target: services.Name}}},
		Sets: []Set{
			{Name: "A", Key: []Type{Address, Protocol, Port}, Value: []Type{Address, Port}},
			{Name: "S", Key: []Type{Address, Protocol, Port}},
			{Name: "V", Key: []Type{Number}, Verdicts: true},
			{Name: "R", Key: []Type{Address, Protocol, Port}, Value: []Type{Address, Port}, Max: 10},
		},
	}
	var all []Element
	for i := range n {
		all = append(all, setElement(family, i))
	}
	all = append(all, Element{Set: "V", Key: string(AppendNumber(nil, 7)), Verdict: balance})
	set.Elements.All = slices.Values(all)
	return set
}

// setElement returns the i-th element of the map A.
func setElement(family Family, i int) Element {
	address := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	if family == IPv6 {
		address = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
	}
	return Element{
		Set: "A", Key: string(AppendPort(AppendProtocol(AppendAddress(nil, address), "tcp"), 80)),
		Value: string(AppendPort(AppendAddress(nil, address), 8080)), Comment: fmt.Sprint("element ", i),
	}
}

// TestSets checks that the kernel has the elements after each kind of change, that missing ones are noticed, and that sets are
// removed with the rules.
func TestSets(t *testing.T) {
	testnetns.Enter(t)
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []Family{IPv4, IPv6} {
		newWriter := func() *Writer {
			return NewWriter(Config{Mode: NFTables, Objects: []Chain{{NAT, "KUBE-BALANCE*"}, {Sets, "*"}}, Journal: journal})
		}
		w := newWriter()
		step := func(what string, set Ruleset, elements int) {
			t.Helper()
			if err := w.Sync(t.Context(), family, set); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if n, err := sizeOfSet(family, setName("A")); err != nil || n != elements {
				t.Fatalf("%s: %d elements, want %d: %v", what, n, elements, err)
			}
			if w.Lost(t.Context()) {
				t.Errorf("%s: elements seem to be missing", what)
			}
		}
		const many = 3000 // several messages
		step("first write", withSets(family, many), many)
		set := withSets(family, many+1)
		set.Elements.Added = []Element{setElement(family, many)}
		step("another element", set, many+1)
		changed := setElement(family, 0)
		changed.Value = setElement(family, 1).Value
		set.Elements.Added, set.Elements.Removed = []Element{changed}, []Element{setElement(family, 0), setElement(family, many)}
		step("an element with another value, and one less", set, many)
		set = withSets(family, 2)
		set.Elements.Rewrite = true
		step("all elements", set, 2)

		asOther(t, func() error {
			e := &encoder{family: family}
			e.changeElements(unix.NFT_MSG_DELSETELEM, slices.Values([]Element{setElement(family, 0)}))
			return e.Send()
		})
		if !w.Lost(t.Context()) {
			t.Error("a removed element is not noticed")
		}
		step("after the removal", withSets(family, 2), 2)
		w = newWriter()
		step("another process", withSets(family, 5), 5)

		// An element that cannot be added makes the whole change fail, and the next one write everything.
		set = withSets(family, 5)
		set.Elements.Added = []Element{{Set: "A", Key: setElement(family, 0).Key, Value: setElement(family, 4).Value}}
		if err := w.Sync(t.Context(), family, set); err == nil {
			t.Error("an element was added that exists with another value")
		}
		step("after an error", withSets(family, 6), 6)
	}
	changes, err := hostjournal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := hostjournal.Revert(t.Context(), changes, Undo()); err != nil {
		t.Error(err)
	}
	for _, family := range []Family{IPv4, IPv6} {
		left := 0
		if err := nftnl.List(unix.NFT_MSG_GETTABLE, nftFamily(family), nil, func([]byte) { left++ }); err != nil || left > 0 {
			t.Errorf("%d tables are left: %v", left, err)
		}
	}
}

// TestRemoveSets checks that the sets of one user are removed while another one uses the table.
func TestRemoveSets(t *testing.T) {
	testnetns.Enter(t)
	other := Ruleset{Chains: Chains{{NAT, "HK-OTHER"}: nil}}
	if err := NewWriter(Config{Mode: NFTables}).Sync(t.Context(), IPv4, other); err != nil {
		t.Fatal(err)
	}
	patterns := []Chain{{NAT, "KUBE-*"}, {Sets, "*"}}
	if err := NewWriter(Config{Mode: NFTables, OtherMode: patterns}).Sync(t.Context(), IPv4, withSets(IPv4, 3)); err != nil {
		t.Fatal(err)
	}
	// The change of the mode removes what exists only in the other one.
	rest := Ruleset{Chains: Chains{{NAT, "KUBE-SERVICES"}: nil}}
	if err := NewWriter(Config{Mode: IPTables, OtherMode: patterns}).Sync(t.Context(), IPv4, rest); err != nil {
		t.Fatal(err)
	}
	sets, err := readSets(IPv4)
	if err != nil || len(sets.named) > 0 {
		t.Errorf("sets %v are left: %v", sets.named, err)
	}
	state, err := nftables{}.Read(t.Context(), IPv4)
	if _, exists := state.Rules[Chain{NAT, "HK-OTHER"}]; err != nil || !exists {
		t.Errorf("chains %v are left: %v", state.Rules, err)
	}
}
