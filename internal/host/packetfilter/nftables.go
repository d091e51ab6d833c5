package packetfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/nftnl"
)

// nftables is the Backend that writes rules for nftables over netlink. All users share one table, because a verdict to
// accept a packet only ends the evaluation of the chains that are attached to the same hook by the same built-in chain.
type nftables struct {
	guard *Guard // notified of the threads that write; may be nil
}

// send makes the changes of a batch. The kernel reports the thread that made them, so the guard gets to know it before.
func (n nftables) send(b *nftnl.Batch) error {
	if b.Empty() {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n.guard.addWriter(unix.Gettid())
	return b.Send()
}

// maxReads is the maximum number of attempts to read the rules while other processes change them.
const maxReads = 100

// Read returns the rules of all parts of hyperkube in one address family.
func (n nftables) Read(ctx context.Context, family Family) (*State, error) {
	var s *State
	err := listUndisturbed(ctx, func() (err error) {
		s, err = readNFT(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading nftables rules: %w", err)
	}
	return s, nil
}

// listUndisturbed calls list until no other process changes objects while it reads them.
func listUndisturbed(ctx context.Context, list func() error) error {
	for attempt := 1; ; attempt++ {
		err := list()
		if !errors.Is(err, nftnl.ErrInterrupted) || attempt == maxReads {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// CountNFTables returns the number of chains of hyperkube in nftables, in the network namespace of the calling thread.
func CountNFTables(ctx context.Context, family Family) (int, error) {
	state, err := nftables{}.Read(ctx, family)
	if err != nil {
		return 0, err
	}
	return len(state.Rules), nil
}

// nftSets are names of sets and maps in the table of hyperkube.
type nftSets struct {
	// maps are the names of the maps of each chain.
	maps map[Chain][]string
	// recent are the names of the lists of recent sources.
	recent map[string]bool
	// named are the names of those in a Ruleset.
	named map[string]bool
}

// readNFT reads the chains, rules and sets of the table. It fails with ErrInterrupted if they change meanwhile.
func readNFT(family Family) (*State, error) {
	s := &State{Rules: map[Chain]int{}, BuiltIn: map[Chain][]HostRule{}}
	err := list(unix.NFT_MSG_GETCHAIN, family, "", func(attributes []byte) {
		if name, ours := nftNameOf(attributes, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME); ours {
			if c, ok := chainOfNFT(name); ok {
				s.Rules[c] = 0
			}
		}
	})
	if err != nil || len(s.Rules) == 0 {
		s.sets = &nftSets{}
		return s, err
	}
	if s.sets, err = readSets(family); err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, names := range s.sets.maps {
		for _, name := range names {
			if sizes[name], err = sizeOfSet(family, name); err != nil {
				return nil, err
			}
		}
	}
	err = list(unix.NFT_MSG_GETRULE, family, "", func(attributes []byte) {
		name, ours := nftNameOf(attributes, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
		c, ok := chainOfNFT(name)
		if !ours || !ok {
			return
		}
		rule, count := parseNFTRule(attributes, sizes)
		s.Rules[c] += count
		if builtIn(c.Name) {
			s.BuiltIn[c] = append(s.BuiltIn[c], rule)
		}
	})
	return s, err
}

// list calls visit for the objects of a kind in the table. set is the name of the set whose elements are listed, if
// kind is NFT_MSG_GETSETELEM. It is no error if the table or the set does not exist.
func list(kind int, family Family, set string, visit func(attributes []byte)) error {
	err := nftnl.List(kind, nftFamily(family), func(b *nftnl.Batch) {
		const table = 1 // for all kinds of objects
		if kind == unix.NFT_MSG_GETCHAIN {
			return // the kernel does not select chains
		}
		b.String(table, nftTable)
		if set != "" {
			b.String(unix.NFTA_SET_ELEM_LIST_SET, set)
		}
	}, visit)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// nftNameOf returns the name of an object. ours is false if it belongs to another table.
func nftNameOf(attributes []byte, table, name int) (text string, ours bool) {
	for attribute, value := range nftnl.Attributes(attributes) {
		switch attribute {
		case table:
			ours = cString(value) == nftTable
		case name:
			text = cString(value)
		}
	}
	return text, ours
}

// cString returns the text of a value that ends with zero bytes.
func cString(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// readSets returns the names of the sets of the table, except for those of single rules, which have no lasting name.
func readSets(family Family) (*nftSets, error) {
	out := &nftSets{maps: map[Chain][]string{}, recent: map[string]bool{}, named: map[string]bool{}}
	err := list(unix.NFT_MSG_GETSET, family, "", func(attributes []byte) {
		name, ours := nftNameOf(attributes, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
		if !ours {
			return
		}
		if recent, ok := strings.CutPrefix(name, recentPrefix); ok {
			out.recent[recent] = true
		} else if c, _ := chainOfNFT(name); c.Table == Sets {
			out.named[c.Name] = true
		} else if at := strings.LastIndexByte(name, '-'); at > 0 {
			c, _ := chainOfNFT(name[:at])
			out.maps[c] = append(out.maps[c], name)
		}
	})
	return out, err
}

// sizeOfSet returns the number of elements of a set.
func sizeOfSet(family Family, name string) (size int, err error) {
	err = list(unix.NFT_MSG_GETSETELEM, family, name, func(attributes []byte) {
		for attribute, value := range nftnl.Attributes(attributes) {
			if attribute == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				for range nftnl.Attributes(value) {
					size++
				}
			}
		}
	})
	return size, err
}

// parseNFTRule returns a rule, and the number of rules of this package for which it stands. sizes contains the number of
// elements of each map.
func parseNFTRule(attributes []byte, sizes map[string]int) (rule HostRule, count int) {
	count = 1
	for attribute, value := range nftnl.Attributes(attributes) {
		switch attribute {
		case unix.NFTA_RULE_HANDLE:
			if len(value) == 8 {
				rule.handle = binary.BigEndian.Uint64(value)
			}
		case unix.NFTA_RULE_USERDATA:
			for kind, text := range userDataParts(value) {
				switch kind {
				case dataText:
					rule.Text, rule.Target = text, jumpTarget(strings.Fields(text))
				case dataCount:
					// An unknown number is that of a map.
					if n, err := strconv.Atoi(text); err == nil {
						count = n
					} else {
						count = sizes[mapOf(attributes)]
					}
				}
			}
		}
	}
	return rule, count
}

// userDataParts returns the parts of a rule's user data by type.
func userDataParts(data []byte) map[byte]string {
	out := map[byte]string{}
	for len(data) >= 2 && int(data[1]) <= len(data)-2 {
		out[data[0]] = cString(data[2 : 2+int(data[1])])
		data = data[2+int(data[1]):]
	}
	return out
}

// mapOf returns the name of the map that a rule uses, or "".
func mapOf(attributes []byte) string {
	name := ""
	find(attributes, []int{unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_LIST_ELEM, unix.NFTA_EXPR_DATA, unix.NFTA_LOOKUP_SET}, func(value []byte) {
		if text := cString(value); strings.Contains(text, "-") {
			name = text
		}
	})
	return name
}

// find calls visit for the values of nested attributes with a path of numbers.
func find(data []byte, path []int, visit func([]byte)) {
	for attribute, value := range nftnl.Attributes(data) {
		switch {
		case attribute != path[0]:
		case len(path) == 1:
			visit(value)
		default:
			find(value, path[1:], visit)
		}
	}
}

// Apply makes change with one transaction.
func (n nftables) Apply(_ context.Context, family Family, change Change) error {
	e := &encoder{family: family}
	sets := &nftSets{}
	switch {
	case change.Before != nil:
	case change.State != nil:
		sets = change.State.sets
	case len(change.Replace)+len(change.Remove) > 0:
		var err error
		if sets, err = readSets(family); err != nil {
			return fmt.Errorf("reading nftables sets: %w", err)
		}
	}
	e.change(change, sets)
	if err := n.send(&e.Batch); err != nil {
		return fmt.Errorf("writing nftables rules: %w", err)
	}
	return nil
}

// change appends a change. existing are the sets of chains whose present rules change.Before does not contain.
func (e *encoder) change(change Change, existing *nftSets) {
	var rewrite []rewrittenChain
	for _, c := range sortedKeys(change.Replace) {
		before, known := change.Before[c]
		r := rewrittenChain{chain: c, steps: compile(change.Replace[c]), existing: existing.maps[c]}
		if known {
			r.before = compile(before)
			r.existing = mapsOf(c, r.before)
		}
		r.patch = known && sameMaps(r.before, r.steps)
		rewrite = append(rewrite, r)
	}
	if len(change.Replace)+len(change.Create)+len(change.Jumps) > 0 {
		e.ensureTable()
	}
	for _, c := range change.Create {
		e.ensureChain(c)
	}
	for _, j := range change.Jumps {
		e.ensureChain(j.From)
	}
	// Chains must exist before rules and maps refer to them.
	for _, r := range rewrite {
		if r.before == nil {
			e.ensureChain(r.chain)
		}
	}
	for _, r := range rewrite {
		if !r.patch {
			e.clear(r.chain, r.existing)
		}
	}
	for _, c := range change.Remove {
		e.clear(c, slices.Concat(existing.maps[c], mapsOf(c, compile(change.Before[c]))))
	}
	// Sets can be removed when no rule uses them, and must exist before rules use them.
	e.prepareSets(change.sets, existing.named)
	for _, r := range rewrite {
		if r.patch {
			e.patch(r)
		} else {
			e.steps(r.chain, r.steps)
		}
	}
	e.addElements(change.sets)
	if len(change.Jumps) > 0 {
		e.jumps(change.State, change.State.edits(change.Jumps))
	}
	for _, c := range change.Remove {
		e.removeChain(c.nftName())
	}
	for _, list := range change.unusedLists(existing) {
		e.removeSet(recentPrefix + list)
	}
}

// rewrittenChain is a chain whose rules are replaced.
type rewrittenChain struct {
	chain         Chain
	before, steps []step
	// existing are the names of its maps.
	existing []string
	// patch is true if only entries of its maps differ.
	patch bool
}

// mapsOf returns the names of the maps of a chain.
func mapsOf(c Chain, steps []step) []string {
	var out []string
	for i, s := range steps {
		if s.key != 0 && s.key != keyRandom {
			out = append(out, c.mapName(i))
		}
	}
	return out
}

// missingElements reports whether one of the sets in want, which contains the number of elements of each, does not have
// them in the kernel.
func missingElements(family Family, want map[string]int) bool {
	for name, n := range want {
		size, err := sizeOfSet(family, setName(name))
		if err != nil || size != n {
			return true
		}
	}
	return false
}

// clear removes the rules and the maps of a chain.
func (e *encoder) clear(c Chain, existing []string) {
	e.flush(c)
	for _, name := range existing {
		e.removeSet(name)
	}
}

// patch changes the entries of the maps of a chain.
func (e *encoder) patch(r rewrittenChain) {
	for i := range r.steps {
		before, after := &r.before[i], &r.steps[i]
		if after.key == 0 || after.key == keyRandom {
			continue
		}
		have := make(map[string]*Rule, len(before.entries))
		for _, b := range before.entries {
			have[b.key] = b.rule
		}
		var add, remove []entry
		for _, a := range after.entries {
			old := have[a.key]
			delete(have, a.key)
			if old != nil && old.Target == a.rule.Target {
				continue
			}
			if old != nil {
				remove = append(remove, entry{a.key, old})
			}
			add = append(add, a)
			if a.rule.Target == Reject {
				e.ensureReject(r.chain.Table)
			}
		}
		for key, old := range have {
			remove = append(remove, entry{key, old})
		}
		name := r.chain.mapName(i)
		e.elements(unix.NFT_MSG_DELSETELEM, r.chain, name, 0, remove)
		e.elements(unix.NFT_MSG_NEWSETELEM, r.chain, name, 0, add)
	}
}

// unusedLists returns the lists of recent sources that no rule uses after the change. A list has the name of the chain
// that records sources in it. existing are the sets of chains whose present rules Before does not contain.
func (c Change) unusedLists(existing *nftSets) []string {
	var out []string
	records := func(rules []Rule, chain Chain) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.Recent.Record && r.Recent.List == chain.Name })
	}
	check := func(chain Chain, after []Rule) {
		if (records(c.Before[chain], chain) || existing.recent[chain.Name]) && !records(after, chain) {
			out = append(out, chain.Name)
		}
	}
	for chain, rules := range c.Replace {
		check(chain, rules)
	}
	for _, chain := range c.Remove {
		check(chain, nil)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// rulePositionID is the attribute that contains the ID of the rule behind which a rule is inserted.
const rulePositionID = 10 // NFTA_RULE_POSITION_ID

// jumps appends the steps that put jumps in place. state contains the present rules of the built-in chains.
func (e *encoder) jumps(state *State, edits []edit) {
	present := map[Chain][]HostRule{}
	for i, edit := range edits {
		rules, known := present[edit.chain]
		if !known {
			rules = slices.Clone(state.BuiltIn[edit.chain])
		}
		if edit.remove != "" {
			at := slices.IndexFunc(rules, func(r HostRule) bool { return r.Text == edit.remove })
			e.removeRule(edit.chain, rules[at].handle)
			present[edit.chain] = slices.Delete(rules, at, at+1)
			continue
		}
		at := edit.at - 1
		if edit.at == 0 {
			at = len(rules)
		}
		id := uint32(i + 1)
		flags := uint16(unix.NLM_F_CREATE)
		if at > 0 {
			flags |= unix.NLM_F_APPEND
		}
		e.begin(unix.NFT_MSG_NEWRULE, flags)
		e.String(unix.NFTA_RULE_CHAIN, edit.chain.nftName())
		e.Uint32(unix.NFTA_RULE_ID, id)
		if at > 0 && rules[at-1].handle != 0 {
			e.Uint64(unix.NFTA_RULE_POSITION, rules[at-1].handle)
		} else if at > 0 {
			e.Uint32(rulePositionID, rules[at-1].id)
		}
		e.body(edit.chain, &step{rule: edit.insert}, "", 0)
		present[edit.chain] = slices.Insert(rules, at, HostRule{Target: edit.insert.Target, Text: edit.insert.String(), id: id})
	}
}
