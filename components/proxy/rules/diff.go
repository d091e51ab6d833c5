package rules

import (
	"slices"
	"strings"
)

// Restore returns the input for `iptables-restore --noflush` that changes before into after, or ""
// if they are equal. Each table is changed atomically.
func Restore(before, after Set) string {
	var out strings.Builder
	writeTable(&out, "filter", before.Filter, after.Filter)
	writeTable(&out, "nat", before.NAT, after.NAT)
	return out.String()
}

func writeTable(out *strings.Builder, name string, before, after Table) {
	var changed, removed []string
	for chain, rules := range after {
		if old, exists := before[chain]; !exists || !slices.Equal(old, rules) {
			changed = append(changed, chain)
		}
	}
	for chain := range before {
		if _, exists := after[chain]; !exists {
			removed = append(removed, chain)
		}
	}
	if len(changed)+len(removed) == 0 {
		return
	}
	slices.Sort(changed)
	slices.Sort(removed)
	out.WriteString("*" + name + "\n")
	// Declaring a chain creates or flushes it.
	for _, chain := range append(append([]string(nil), changed...), removed...) {
		out.WriteString(":" + chain + " - [0:0]\n")
	}
	for _, chain := range changed {
		for _, rule := range after[chain] {
			out.WriteString("-A " + chain + " " + rule + "\n")
		}
	}
	for _, chain := range removed {
		out.WriteString("-X " + chain + "\n")
	}
	out.WriteString("COMMIT\n")
}

// perServicePrefixes are the prefixes of the chains that a proxy creates per service.
var perServicePrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"}

// Leftover parses the output of iptables-save and returns the per-service chains of an earlier
// proxy, so that Restore removes the stale ones. It does not parse their rules, so Restore writes
// all of them again.
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
			for _, prefix := range perServicePrefixes {
				if strings.HasPrefix(chain, prefix) {
					table[chain] = []string{"unknown"}
				}
			}
		}
	}
	return set
}
