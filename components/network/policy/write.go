package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hyperkube/internal/host/iptables"
)

// writer writes the rules of one IP family to the kernel.
type writer struct {
	family iptables.Family
	guard  *iptables.Guard
	// applied contains the text of each chain in the kernel. Nil means that the chains must be read
	// from the kernel.
	applied map[string]string
}

// write applies the difference between the kernel's rules and set in one atomic iptables-restore.
func (w *writer) write(ctx context.Context, set Set) error {
	if w.applied == nil {
		saved, err := iptables.Save(ctx, w.family)
		if err != nil {
			return err
		}
		w.applied = parseExisting(saved)
	}
	want := map[string]string{}
	for chain, rules := range set {
		var b strings.Builder
		for _, r := range rules {
			fmt.Fprintf(&b, "-A %s %s\n", chain, r.text())
		}
		want[chain] = b.String()
	}
	if _, exists := w.applied[chainPolicy]; !exists && want[chainPolicy] == "" {
		// The pod network has not created the chain yet, and it would be empty.
		delete(want, chainPolicy)
	}
	if err := w.guard.Restore(ctx, w.family, difference(w.applied, want)); err != nil {
		w.applied = nil
		return err
	}
	w.applied = want
	return nil
}

// rulesMissing reports whether any written rule is missing in the kernel. If so, the next write reads the
// rules from the kernel.
func (w *writer) rulesMissing(ctx context.Context) bool {
	if w.applied == nil {
		return false
	}
	if saved, err := iptables.Save(ctx, w.family); err == nil && iptables.Complete(saved, difference(nil, w.applied)) {
		return false
	}
	w.applied = nil
	return true
}

// unknownRules stands for the text of a chain that must be rewritten in any case.
const unknownRules = "?"

// parseExisting returns the chains of this package in the output of iptables-save.
func parseExisting(saved string) map[string]string {
	found := map[string]string{}
	for chain, words := range iptables.Lines(saved) {
		table, name, _ := strings.Cut(chain, " ")
		switch {
		case table != "mangle":
		case name == chainPolicy && words == nil:
			found[name] = ""
		case name == chainPolicy || words == nil && strings.HasPrefix(name, chainPrefix):
			found[name] = unknownRules
		}
	}
	return found
}

// difference returns the input for iptables-restore that changes the chains in have to those in
// want. It is empty if they are equal.
func difference(have, want map[string]string) string {
	var declare, rules, remove strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(want)) {
		if before, ok := have[chain]; ok && before == want[chain] {
			continue
		}
		fmt.Fprintf(&declare, ":%s - [0:0]\n", chain) // this also flushes an existing chain
		rules.WriteString(want[chain])
	}
	for _, chain := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[chain]; ok || chain == chainPolicy {
			continue
		}
		fmt.Fprintf(&declare, ":%s - [0:0]\n", chain)
		fmt.Fprintf(&remove, "-X %s\n", chain)
	}
	if declare.Len() == 0 {
		return ""
	}
	return "*mangle\n" + declare.String() + rules.String() + remove.String() + "COMMIT\n"
}
