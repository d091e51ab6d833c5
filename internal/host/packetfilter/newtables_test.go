package packetfilter

import (
	"path/filepath"
	"slices"
	"testing"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/testing/testnetns"
)

// existingTables returns the tables of both families, as the journal names them.
func existingTables(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, family := range []Family{IPv4, IPv6} {
		names, err := tableNames(t.Context(), family)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			out = append(out, string(family)+" "+string(name))
		}
	}
	slices.Sort(out)
	return out
}

// TestUndoTables checks that the tables that iptables creates are removed, except for one that existed before and those
// that another program uses.
func TestUndoTables(t *testing.T) {
	testnetns.Enter(t)
	restore := func(family Family, input string) {
		t.Helper()
		if err := (iptables{}).restore(t.Context(), family, input); err != nil {
			t.Fatal(err)
		}
	}
	const chain = ":HK-A - [0:0]\n-A HK-A -j ACCEPT\n-A OUTPUT -j HK-A\nCOMMIT\n"
	restore(IPv4, "*mangle\n:HK-TEST - [0:0]\n-X HK-TEST\nCOMMIT\n")
	if got := existingTables(t); !slices.Equal(got, []string{"4 mangle"}) {
		t.Skip("iptables does not create tables of nf_tables:", got)
	}
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	if mode, err := IPTables.Select(t.Context(), journal); mode != IPTables || err != nil {
		t.Fatal(mode, err)
	}
	changes, err := hostjournal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []string
	for _, c := range changes {
		recorded = append(recorded, string(c.Kind)+" "+c.Name)
	}
	if want := []string{"table 4 filter", "table 4 nat", "table 6 filter", "table 6 nat", "table 6 mangle"}; !slices.Equal(recorded, want) {
		t.Errorf("recorded %q, want %q", recorded, want)
	}
	revert := func(want ...string) {
		t.Helper()
		if err := hostjournal.Revert(t.Context(), changes, Undo()); err != nil {
			t.Error(err)
		}
		if got := existingTables(t); !slices.Equal(got, want) {
			t.Errorf("the tables %q are left, want %q", got, want)
		}
	}

	restore(IPv4, "*filter\n"+chain)
	restore(IPv4, "*nat\n:THEIRS - [0:0]\nCOMMIT\n")
	restore(IPv6, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
	restore(IPv6, "*nat\n"+chain)
	restore(IPv6, "*mangle\n:HK-TEST - [0:0]\n-X HK-TEST\nCOMMIT\n")
	revert("4 filter", "4 mangle", "4 nat", "6 filter", "6 nat")

	const undo = ":HK-A - [0:0]\n-D OUTPUT -j HK-A\n-X HK-A\nCOMMIT\n"
	restore(IPv4, "*filter\n"+undo)
	restore(IPv4, "*nat\n-X THEIRS\nCOMMIT\n")
	restore(IPv6, "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n")
	restore(IPv6, "*nat\n"+undo)
	revert("4 mangle")
	revert("4 mangle")
}
