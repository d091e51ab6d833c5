package packetfilter

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"hyperkube/internal/host/hostjournal"
)

// Config configures a Writer for one user of the packet filter, such as the service proxy. Chains
// of a Ruleset that are neither Objects nor Foreign belong to the user alone, and their names are
// recorded in the journal.
type Config struct {
	// Owner is the name of the user in log messages, such as "the pod network".
	Owner string
	// Objects are patterns of the chains of API objects, such as Services. Sync removes those that a
	// Ruleset lacks. The journal contains the patterns instead of each chain, because it syncs every
	// record to disk and the chains change too often.
	Objects []Chain
	// Shared are chains to which the user's rules jump and whose rules another user writes. Sync
	// creates them if they do not exist. Patterns are recorded in the journal only.
	Shared []Chain
	// Foreign are chains that another user creates, and that this user writes. They are not
	// recorded in the journal, and not created while they would have no rules.
	Foreign []Chain
	// OtherMode are patterns of those chains and sets that the user's rules have only in the other mode. They are removed when
	// the mode has changed.
	OtherMode []Chain
	// Guarded are names or patterns of the chains that the Guard watches, besides the jumps to them.
	Guarded []string
	// Period is the interval of checks if the kernel does not report changes. Zero means 30 s.
	Period time.Duration
	// Journal records chains and jumps before they are created. If it is nil, nothing is recorded.
	Journal *hostjournal.Journal
	// Log receives warnings. If it is nil, slog.Default() is used.
	Log *slog.Logger
	// Mode is the kind of rules. Zero means IPTables.
	Mode Mode
	// Backend is used by tests. Nil means that of the mode.
	Backend Backend
}

// Writer makes the kernel have the rules of one user, in the network namespace of the calling
// thread. It is not safe for concurrent use, except for the methods of its Guard.
type Writer struct {
	// Guard detects that other programs removed rules.
	*Guard
	cfg      Config
	backend  Backend
	families map[Family]*written
}

// written is what a Writer has last written in one family, which Sync compares with the next
// Ruleset.
type written struct {
	// current is true if chains and jumps are those in the kernel.
	current bool
	chains  Chains
	jumps   []Jump
	// elements contains the number of elements of each set.
	elements map[string]int
	// alone is true when the rules of the other mode have been removed.
	alone bool
	// total and last are the numbers of rules of all chains and in the last write, by table.
	total, last map[Table]int
}

// unknown stands for the rules of an existing chain that an earlier process has written. It differs
// from all rules, so that Sync replaces them.
var unknown = []Rule{{Target: "?"}}

// NewWriter returns a Writer. The first Sync changes the kernel's rules.
func NewWriter(cfg Config) *Writer {
	w := &Writer{
		Guard: newGuard(cfg.Mode, cfg.Period, cfg.Log, cfg.Guarded...),
		cfg:   cfg, backend: cfg.Backend, families: map[Family]*written{},
	}
	switch {
	case w.backend != nil:
	case cfg.Mode == NFTables:
		w.backend = nftables{w.Guard}
	default:
		w.backend = iptables{w.Guard}
	}
	return w
}

// Current reports whether Sync succeeded for a family and no missing rules were found since.
func (w *Writer) Current(family Family) bool { return w.family(family).current }

// Used reports whether Sync has ever succeeded for a family.
func (w *Writer) Used(family Family) bool { return w.family(family).total != nil }

// Counts returns, by table, how many rules the chains of the Writer have in a family, and how many of them the last
// Sync wrote. Both are for metrics.
func (w *Writer) Counts(family Family) (total, last map[Table]int) {
	f := w.family(family)
	return f.total, f.last
}

func (w *Writer) family(family Family) *written {
	if w.families[family] == nil {
		w.families[family] = &written{}
	}
	return w.families[family]
}

// Forget makes the next Sync of a family read the rules of the kernel and write all chains, as the
// first one does.
func (w *Writer) Forget(family Family) { w.family(family).current = false }

// maxAttempts is the maximum number of checks of the position of jumps. Service proxies insert their
// jumps only once, when they start.
const maxAttempts = 3

// Sync makes the kernel have the rules of set, atomically in each table. The first time, and after an
// error, Forget or Lost, it reads the rules of the kernel. Otherwise it writes only what differs
// from the last set. Chains that are not in set are removed if they match Config.Objects. The caller
// must not modify set afterwards. Rules that it takes unchanged from the last set are recognized by
// their memory and not compared. The elements of sets are not compared: set.Elements must contain the difference to those of
// the last set that was passed to Sync, or Forget must be called before.
func (w *Writer) Sync(ctx context.Context, family Family, set Ruleset) (err error) {
	f := w.family(family)
	f.last = nil
	defer func() {
		if err != nil {
			f.current = false // the next Sync reads the state of the kernel
		}
	}()
	first := !f.current
	placeJumps := first || !slices.Equal(set.Jumps, f.jumps)
	var state *State
	if w.mustRead(set, first, placeJumps) {
		if state, err = w.backend.Read(ctx, family); err != nil {
			return err
		}
	}
	have := f.chains
	if first {
		have = w.adopt(state)
	}
	change, chains, total := w.difference(have, set.Chains)
	if placeJumps {
		change.Jumps, change.State = set.Jumps, state
	}
	if first {
		change.Create, change.State, change.Before = w.sharedChains(), state, nil
	}
	elements := change.setElements(set, f.elements, first)
	if err := w.record(family, set, change, first); err != nil {
		return err
	}
	last := change.count()
	if err := w.apply(ctx, family, change); err != nil {
		return err
	}
	*f = written{current: true, chains: chains, jumps: slices.Clone(set.Jumps), elements: elements, total: total, last: last, alone: f.alone}
	if !f.alone {
		if err := w.removeOther(ctx, family, set); err != nil {
			return fmt.Errorf("removing rules that were written in another mode: %w", err)
		}
		f.alone = true
	}
	return nil
}

// setElements adds the difference of elements between set and the last Ruleset to c. have contains the number of elements
// of each set before. It returns these numbers after the change. If first is set, nothing is known about the sets in the
// kernel.
func (c *Change) setElements(set Ruleset, have map[string]int, first bool) map[string]int {
	if len(set.Sets) == 0 {
		return nil
	}
	after := map[string]int{}
	if first || set.Elements.Rewrite {
		c.sets = setChange{sets: set.Sets, create: first, rewrite: true, add: set.Elements.All}
		for _, s := range set.Sets {
			if s.Max == 0 {
				after[s.Name] = 0
			}
		}
		for e := range set.Elements.All {
			after[e.Set]++
		}
		return after
	}
	c.sets = setChange{add: slices.Values(set.Elements.Added), remove: set.Elements.Removed}
	maps.Copy(after, have)
	for _, e := range set.Elements.Removed {
		after[e.Set]--
	}
	for _, e := range set.Elements.Added {
		after[e.Set]++
	}
	return after
}

// mustRead reports whether Sync must read the state of the kernel before it writes set: to place jumps
// (placeJumps), or, if this is the first Sync of the family (first), to find chains and sets of an earlier process and to
// find out whether a foreign chain exists.
func (w *Writer) mustRead(set Ruleset, first, placeJumps bool) bool {
	if placeJumps && len(set.Jumps) > 0 {
		return true
	}
	return first && (len(w.cfg.Objects)+len(w.cfg.Shared)+len(set.Sets) > 0 ||
		slices.ContainsFunc(w.cfg.Foreign, func(c Chain) bool { return len(set.Chains[c]) == 0 }))
}

// apply writes change to the kernel. If change contains jumps that must come after those of the service proxy
// (AfterServices), the proxy may have inserted its own jumps since change.State was read. In this case, apply reads the
// rules after the write and moves the AfterServices jumps that are in the wrong place, up to maxAttempts times.
func (w *Writer) apply(ctx context.Context, family Family, change Change) error {
	for range maxAttempts {
		if err := w.backend.Apply(ctx, family, change); err != nil {
			return err
		}
		behind := slices.DeleteFunc(slices.Clone(change.Jumps), func(j Jump) bool { return j.Place != AfterServices })
		if len(behind) == 0 || len(change.State.edits(behind)) == 0 {
			return nil
		}
		state, err := w.backend.Read(ctx, family)
		if err != nil {
			return err
		}
		if len(state.edits(behind)) == 0 {
			return nil
		}
		change = Change{Jumps: behind, State: state}
	}
	return nil
}

// adopt returns the chains in Config.Objects and Config.Foreign that exist in the kernel, so that Sync removes or
// replaces the rules of an earlier process. state describes the kernel's rules and may be nil.
func (w *Writer) adopt(state *State) Chains {
	found := Chains{}
	if state == nil {
		return found
	}
	for chain, rules := range state.Rules {
		switch {
		case w.isObject(chain):
			found[chain] = unknown
		case slices.Contains(w.cfg.Foreign, chain) && rules == 0:
			found[chain] = nil
		case slices.Contains(w.cfg.Foreign, chain):
			found[chain] = unknown
		}
	}
	return found
}

func (w *Writer) isObject(chain Chain) bool { return slices.ContainsFunc(w.cfg.Objects, chain.matches) }

// sharedChains returns the chains in Config.Shared that Sync must create, which excludes patterns.
func (w *Writer) sharedChains() []Chain {
	return slices.DeleteFunc(slices.Clone(w.cfg.Shared), Chain.isPattern)
}

// difference returns the change that turns the chains have into want, without jumps. It also
// returns the chains that exist after the change, and the number of their rules by table. Foreign
// chains that do not exist and would be empty are omitted.
func (w *Writer) difference(have, want Chains) (change Change, after Chains, total map[Table]int) {
	change.Replace, change.Before, after, total = Chains{}, Chains{}, want, map[Table]int{}
	for chain, rules := range want {
		before, exists := have[chain]
		if !exists && len(rules) == 0 && slices.Contains(w.cfg.Foreign, chain) {
			after = maps.Clone(after)
			delete(after, chain)
			continue
		}
		if !exists || !equal(before, rules) {
			change.Replace[chain] = rules
			if exists {
				change.Before[chain] = before
			}
		}
		total[chain.Table] += len(rules)
	}
	for chain := range have {
		if _, exists := want[chain]; !exists && w.isObject(chain) {
			change.Remove = append(change.Remove, chain)
			change.Before[chain] = have[chain]
		}
	}
	return change, after, total
}

func equal(a, b []Rule) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// count returns the number of rules that the change writes, by table, jumps included.
func (c Change) count() map[Table]int {
	out := map[Table]int{}
	for chain, rules := range c.Replace {
		out[chain.Table] += len(rules)
	}
	if len(c.Jumps) > 0 {
		for _, e := range c.State.edits(c.Jumps) {
			if e.remove == "" {
				out[e.chain.Table]++
			}
		}
	}
	return out
}

// record records the chains and jumps that change creates in the host change journal, before they
// are created. first is set if the Sync is the first one of the family, which also records patterns
// and all jumps.
func (w *Writer) record(family Family, set Ruleset, change Change, first bool) error {
	var changes []hostjournal.Change
	for chain := range change.Replace {
		if !w.isObject(chain) && !slices.Contains(w.cfg.Foreign, chain) {
			changes = append(changes, chain.change(w.mode(), family))
		}
	}
	if first {
		for _, chain := range slices.Concat(w.cfg.Objects, w.cfg.Shared) {
			changes = append(changes, chain.change(w.mode(), family))
		}
	}
	if first || change.Jumps != nil {
		for _, j := range set.Jumps {
			changes = append(changes, j.change(w.mode(), family))
		}
	}
	return w.cfg.Journal.Record(changes...)
}

// Replace replaces the rules of the chains in chains immediately, whether they differ or not. Other
// chains and jumps are kept, and Replace neither records the chains in the journal nor needs a Sync
// before.
func (w *Writer) Replace(ctx context.Context, family Family, chains Chains) error {
	f := w.family(family)
	if err := w.backend.Apply(ctx, family, Change{Replace: chains}); err != nil {
		f.current = false
		return err
	}
	if f.current {
		f.chains = maps.Clone(f.chains)
		maps.Copy(f.chains, chains)
	}
	return nil
}

// Lost reads the rules of the kernel in all families and reports whether rules that Sync wrote are
// missing or could not be read. It compares the number of rules of each chain and of elements of each set, and the position of
// jumps, because iptables-save prints rules in another form than they are written. The next Sync of
// such a family writes all rules.
func (w *Writer) Lost(ctx context.Context) bool {
	lost := false
	for family, f := range w.families {
		if !f.current {
			continue
		}
		state, err := w.backend.Read(ctx, family)
		if err != nil || state.lacks(f.chains, w.sharedChains(), f.jumps) || missingElements(family, f.elements) {
			f.current, lost = false, true
		}
	}
	return lost
}

// Missing reports whether rules of set are missing in the kernel, whether this Writer or another
// process wrote them. If so, the next Sync of the family writes all of them. It compares rules in
// the same way as Lost.
func (w *Writer) Missing(ctx context.Context, family Family, set Ruleset) (bool, error) {
	state, err := w.backend.Read(ctx, family)
	if err != nil || !state.lacks(set.Chains, w.sharedChains(), set.Jumps) {
		return false, err
	}
	w.Forget(family)
	return true, nil
}

// Changes returns the entries for the host journal by which all chains and jumps of s, written in a mode, can be removed.
func (s Ruleset) Changes(mode Mode, family Family) []hostjournal.Change {
	var out []hostjournal.Change
	for _, chain := range sortedKeys(s.Chains) {
		out = append(out, chain.change(mode, family))
	}
	for _, j := range s.Jumps {
		out = append(out, j.change(mode, family))
	}
	return out
}

func (c Chain) change(mode Mode, family Family) hostjournal.Change {
	kind := hostjournal.Chain
	if mode == NFTables {
		kind = hostjournal.NFTables
	}
	return hostjournal.Change{Kind: kind, Name: fmt.Sprintf("%s %s", family, c)}
}
