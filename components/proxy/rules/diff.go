package rules

import (
	"slices"
	"strings"
)

// Restore returns the input of `iptables-restore --noflush` that makes what is
// there, before, into after; "" when they are the same. Each table is changed
// at one instant.
func Restore(before, after Set) string {
	var out strings.Builder
	writeTable(&out, "filter", before.Filter, after.Filter)
	writeTable(&out, "nat", before.NAT, after.NAT)
	return out.String()
}

func writeTable(out *strings.Builder, name string, before, after Table) {
	var changed, gone []string
	for chain, rules := range after {
		if old, there := before[chain]; !there || !slices.Equal(old, rules) {
			changed = append(changed, chain)
		}
	}
	for chain := range before {
		if _, there := after[chain]; !there {
			gone = append(gone, chain)
		}
	}
	if len(changed)+len(gone) == 0 {
		return
	}
	slices.Sort(changed)
	slices.Sort(gone)
	out.WriteString("*" + name + "\n")
	// Naming a chain makes it, or empties it.
	for _, chain := range append(append([]string(nil), changed...), gone...) {
		out.WriteString(":" + chain + " - [0:0]\n")
	}
	for _, chain := range changed {
		for _, rule := range after[chain] {
			out.WriteString("-A " + chain + " " + rule + "\n")
		}
	}
	for _, chain := range gone {
		out.WriteString("-X " + chain + "\n")
	}
	out.WriteString("COMMIT\n")
}

// ours tells the chains that a proxy makes, in either table, from those of
// others.
var ours = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"}

// Leftover reads the output of iptables-save and returns a set with the chains
// per service that an earlier proxy left, so that Restore takes away those that
// are not wanted any more. Their rules are not known, so all are written anew.
func Leftover(save string) Set {
	set := Set{NAT: Table{}, Filter: Table{}}
	var table Table
	for line := range strings.SplitSeq(save, "\n") {
		switch {
		case line == "*nat":
			table = set.NAT
		case line == "*filter":
			table = set.Filter
		case strings.HasPrefix(line, "*"):
			table = nil
		case strings.HasPrefix(line, ":") && table != nil:
			chain, _, _ := strings.Cut(line[1:], " ")
			for _, prefix := range ours {
				if strings.HasPrefix(chain, prefix) {
					table[chain] = []string{"unknown"}
				}
			}
		}
	}
	return set
}
