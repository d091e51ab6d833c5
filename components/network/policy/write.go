package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hyperkube/internal/iptables"
)

// writer brings the rules of one family to the kernel.
type writer struct {
	family iptables.Family
	guard  *iptables.Guard
	// there is what the kernel has, as text; nil: it must be looked at.
	there map[string]string
}

// write brings set to the kernel: what differs from what is there, at one
// instant.
func (w *writer) write(ctx context.Context, set Set) error {
	if w.there == nil {
		saved, err := iptables.Save(ctx, w.family)
		if err != nil {
			return err
		}
		w.there = leftover(saved)
	}
	want := map[string]string{}
	for chain, rules := range set {
		var b strings.Builder
		for _, r := range rules {
			fmt.Fprintf(&b, "-A %s %s\n", chain, r.text())
		}
		want[chain] = b.String()
	}
	if _, there := w.there[chainPolicy]; !there && want[chainPolicy] == "" {
		// The pod network has not made it yet; nothing would be in it.
		delete(want, chainPolicy)
	}
	if err := w.guard.Restore(ctx, w.family, difference(w.there, want)); err != nil {
		w.there = nil
		return err
	}
	w.there = want
	return nil
}

// lost forgets what was written if the kernel lacks any of it, and tells so.
func (w *writer) lost(ctx context.Context) bool {
	if w.there == nil {
		return false
	}
	if saved, err := iptables.Save(ctx, w.family); err == nil && iptables.Complete(saved, difference(nil, w.there)) {
		return false
	}
	w.there = nil
	return true
}

// unknown is the text of a chain whose rules are written anew in any case.
const unknown = "?"

// leftover returns the chains of this package that iptables-save shows.
func leftover(saved string) map[string]string {
	found := map[string]string{}
	for chain, words := range iptables.Lines(saved) {
		table, name, _ := strings.Cut(chain, " ")
		switch {
		case table != "mangle":
		case name == chainPolicy && words == nil:
			found[name] = ""
		case name == chainPolicy || words == nil && strings.HasPrefix(name, chainPrefix):
			found[name] = unknown
		}
	}
	return found
}

// difference is the input of iptables-restore that makes of the chains that
// are there those that are wanted; empty if they are the same.
func difference(there, want map[string]string) string {
	var declare, rules, remove strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(want)) {
		if before, ok := there[chain]; ok && before == want[chain] {
			continue
		}
		fmt.Fprintf(&declare, ":%s - [0:0]\n", chain) // and flushes it
		rules.WriteString(want[chain])
	}
	for _, chain := range slices.Sorted(maps.Keys(there)) {
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
