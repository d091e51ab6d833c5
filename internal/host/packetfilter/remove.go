package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/nftnl"
)

// Remove removes the chains of a family that match one of the patterns, and the rules of other chains that jump to them,
// in all modes. `kube-proxy --cleanup` uses it. It does nothing in a mode that the machine does not support.
func Remove(ctx context.Context, family Family, patterns []Chain) error {
	return errors.Join(IPTables.remove(ctx, family, patterns), NFTables.remove(ctx, family, patterns))
}

// remove is like Remove for one mode.
func (m Mode) remove(ctx context.Context, family Family, patterns []Chain) error {
	if m == NFTables {
		return removeNFT(ctx, family, patterns, nil)
	}
	saved, err := Save(ctx, family)
	if errors.Is(err, ErrNotInstalled) {
		return nil
	}
	if err != nil {
		return err
	}
	return iptables{}.restore(ctx, family, removalInput(saved, patterns, true))
}

// other returns the other mode.
func (m Mode) other() Mode {
	if m == NFTables {
		return IPTables
	}
	return NFTables
}

// has reports whether chains of a family match one of the patterns in a mode. It runs no program. For the legacy
// variant of iptables, which does not use nf_tables, it reports whether there are any rules.
func (m Mode) has(family Family, patterns []Chain) (bool, error) {
	if m != NFTables {
		legacy := "/proc/thread-self/net/ip_tables_names"
		if family == IPv6 {
			legacy = "/proc/thread-self/net/ip6_tables_names"
		}
		if names, err := os.ReadFile(legacy); err == nil && len(names) > 0 {
			return true, nil
		}
	}
	found, err := m.inKernel(family, patterns)
	if errors.Is(err, nftnl.ErrInterrupted) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	return found, err
}

// inKernel reports whether chains of a family match one of the patterns in a mode. It does not know the legacy variant of
// iptables. If chains change at the same time, it may return false with ErrInterrupted.
func (m Mode) inKernel(family Family, patterns []Chain) (bool, error) {
	found := false
	err := nftnl.List(unix.NFT_MSG_GETCHAIN, nftFamily(family), nil, func(attributes []byte) {
		var table, name string
		for attribute, value := range nftnl.Attributes(attributes) {
			switch attribute {
			case unix.NFTA_CHAIN_TABLE:
				table = cString(value)
			case unix.NFTA_CHAIN_NAME:
				name = cString(value)
			}
		}
		c := Chain{Table(table), name}
		if m == NFTables {
			c, _ = chainOfNFT(name)
		}
		found = found || (table == nftTable) == (m == NFTables) && slices.ContainsFunc(patterns, c.matches)
	})
	if found {
		return true, nil
	}
	return false, err
}

// removeNFT removes the chains and sets of a family that match one of the patterns, and rules of built-in chains: the jumps to
// these chains, and those with a target in jumps. If nothing else is left, it removes the table.
func removeNFT(ctx context.Context, family Family, patterns []Chain, jumps map[Chain][]string) error {
	state, err := nftables{}.Read(ctx, family)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // the kernel has no nf_tables
	}
	if err != nil || len(state.Rules) == 0 {
		return err
	}
	e := &encoder{family: family}
	left := 0
	for _, c := range sortedKeys(state.BuiltIn) {
		for _, rule := range state.BuiltIn[c] {
			if slices.Contains(jumps[c], rule.Target) || slices.ContainsFunc(patterns, Chain{c.Table, rule.Target}.matches) {
				e.removeRule(c, rule.handle)
			} else {
				left++
			}
		}
	}
	var remove []Chain
	for _, c := range sortedKeys(state.Rules) {
		switch {
		case builtIn(c.Name):
		case slices.ContainsFunc(patterns, c.matches):
			remove = append(remove, c)
			e.clear(c, state.sets.maps[c])
		default:
			left++
		}
	}
	// Sets can be removed when no rule uses them, and chains when no element refers to them.
	for name := range state.sets.named {
		if slices.ContainsFunc(patterns, Chain{Sets, name}.matches) {
			e.removeSet(setName(name))
		}
	}
	for _, c := range remove {
		e.removeChain(c.nftName())
		if state.sets.recent[c.Name] {
			e.removeSet(recentPrefix + c.Name)
		}
	}
	if left == 0 {
		e = &encoder{family: family}
		e.begin(unix.NFT_MSG_DELTABLE, 0)
	}
	if err := (nftables{}).send(&e.Batch); err != nil {
		return fmt.Errorf("removing nftables rules: %w", err)
	}
	return nil
}

func sortedKeys[T any](m map[Chain]T) []Chain { return slices.SortedFunc(maps.Keys(m), Chain.compare) }

// undoNFT reverts recorded changes of nftables: chains, and jumps from built-in chains.
func undoNFT(ctx context.Context, changes []hostjournal.Change) error {
	patterns, jumps := map[Family][]Chain{}, map[Family]map[Chain][]string{}
	for _, c := range changes {
		family, chain, err := chainOf(c)
		if err != nil {
			return err
		}
		if jumps[family] == nil {
			jumps[family] = map[Chain][]string{}
		}
		if len(c.Args) == 0 {
			patterns[family] = append(patterns[family], chain)
		} else {
			jumps[family][chain] = append(jumps[family][chain], c.Args[0])
		}
	}
	var errs []error
	for family := range jumps {
		errs = append(errs, removeNFT(ctx, family, patterns[family], jumps[family]))
	}
	return errors.Join(errs...)
}

// removeOther removes the rules that the Writer's user has in the other mode, which an earlier process with that mode
// has written. set contains the rules that are now in force. Packets are not lost, because both are equal.
func (w *Writer) removeOther(ctx context.Context, family Family, set Ruleset) error {
	if w.cfg.Backend != nil {
		return nil // a test
	}
	other := w.mode().other()
	patterns := slices.Concat(sortedKeys(set.Chains), w.cfg.Objects, w.cfg.OtherMode, w.cfg.Foreign)
	for _, c := range w.sharedChains() {
		// Another user still needs the rules of a shared chain to which packets jump directly, until it has written them.
		if !slices.ContainsFunc(set.Jumps, func(j Jump) bool { return j.Rule.Target == c.Name }) {
			patterns = append(patterns, c)
		}
	}
	found, err := other.has(family, patterns)
	if err != nil || !found {
		return err
	}
	return other.remove(ctx, family, patterns)
}

// mode returns the mode of the Writer.
func (w *Writer) mode() Mode {
	if w.cfg.Mode == NFTables {
		return NFTables
	}
	return IPTables
}

// removalInput returns the input for iptables-restore that removes the chains that match one of the
// patterns and, if withJumps is set, the rules of other chains that jump to them. saved is the
// output of iptables-save.
func removalInput(saved string, patterns []Chain, withJumps bool) string {
	removed := func(c Chain) bool { return slices.ContainsFunc(patterns, c.matches) }
	type parts struct{ flush, unlink, remove strings.Builder }
	byTable := map[Table]*parts{}
	var inOrder []Table
	for chain, rule := range lines(saved) {
		p := byTable[chain.Table]
		if p == nil {
			p = &parts{}
			byTable[chain.Table], inOrder = p, append(inOrder, chain.Table)
		}
		switch own := removed(chain); {
		case own && rule == declaration:
			p.flush.WriteString(":" + chain.Name + " - [0:0]\n")
			p.remove.WriteString("-X " + chain.Name + "\n")
		case withJumps && !own && rule != declaration && removed(Chain{chain.Table, jumpTarget(strings.Fields(rule))}):
			p.unlink.WriteString("-D " + chain.Name + " " + rule + "\n")
		}
	}
	var out strings.Builder
	for _, table := range inOrder {
		if p := byTable[table]; p.flush.Len()+p.unlink.Len() > 0 {
			out.WriteString("*" + string(table) + "\n" + p.flush.String() + p.unlink.String() + p.remove.String() + "COMMIT\n")
		}
	}
	return out.String()
}
