package packetfilter

import (
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/host/hostjournal"
)

func TestRemoval(t *testing.T) {
	got := removalInput("*nat\n:PREROUTING ACCEPT [0:0]\n:HK-A - [0:0]\n:HK-SEP-1 - [0:0]\n-A HK-A -j HK-SEP-1\nCOMMIT\n*filter\n:HK-A - [0:0]\nCOMMIT\n",
		[]Chain{{NAT, "HK-A"}, {NAT, "HK-SEP-*"}}, false)
	want := "*nat\n:HK-A - [0:0]\n:HK-SEP-1 - [0:0]\n-X HK-A\n-X HK-SEP-1\nCOMMIT\n"
	if got != want {
		t.Errorf("got %q", got)
	}
}

func TestDeletions(t *testing.T) {
	const saved = `*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -m comment --comment "hyperkube \"pod\" network" -j HK-A
-A POSTROUTING -m comment --comment mine -m addrtype --dst-type LOCAL -j HK-B
-A POSTROUTING -m comment --comment mine -m addrtype --dst-type LOCAL -j HK-B
-A POSTROUTING -m comment --comment "foreign rule" -j THEIRS
-A POSTROUTING -s 10.0.0.0/8 -m comment --comment odd -j HK-C
COMMIT
*filter
-A POSTROUTING -m comment --comment mine -m addrtype --dst-type LOCAL -j HK-B
COMMIT
`
	odd := hostjournal.Change{Kind: hostjournal.Rule, Name: "4 nat POSTROUTING", Args: []string{"-m", "comment", "--comment", "odd", "-s", "10.0.0.0/255.0.0.0", "-j", "HK-C"}}
	input, unclear := ruleDeletions(saved, []hostjournal.Change{
		{Kind: hostjournal.Rule, Name: "4 nat POSTROUTING", Args: []string{"-m", "comment", "--comment", "hyperkube \"pod\" network", "-j", "HK-A"}},
		{Kind: hostjournal.Rule, Name: "4 nat POSTROUTING", Args: []string{"-m", "addrtype", "--dst-type", "LOCAL", "-m", "comment", "--comment", "mine", "-j", "HK-B"}},
		{Kind: hostjournal.Rule, Name: "4 nat POSTROUTING", Args: []string{"-j", "HK-GONE"}}, odd,
	})
	const want = `*nat
-D POSTROUTING -m comment --comment "hyperkube \"pod\" network" -j HK-A
-D POSTROUTING -m comment --comment mine -m addrtype --dst-type LOCAL -j HK-B
-D POSTROUTING -m comment --comment mine -m addrtype --dst-type LOCAL -j HK-B
COMMIT
`
	if input != want {
		t.Errorf("got\n%s", input)
	}
	if len(unclear) != 1 || !slices.Equal(unclear[0].Args, odd.Args) {
		t.Errorf("unclear: %v", unclear)
	}
}

func FuzzDeletions(f *testing.F) {
	f.Add("*nat\n-A A -m comment --comment \"a b\" -j B\nCOMMIT\n", "4 nat A", "a b")
	f.Fuzz(func(t *testing.T, saved, name, comment string) {
		input, _ := ruleDeletions(saved, []hostjournal.Change{{Kind: hostjournal.Rule, Name: name, Args: []string{"-m", "comment", "--comment", comment, "-j", "B"}}})
		for line := range strings.Lines(input) {
			if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-D "); ok && !strings.Contains(saved, "-A "+rule) {
				t.Errorf("%q removes a missing rule", line)
			}
		}
	})
}
