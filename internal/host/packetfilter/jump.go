package packetfilter

import (
	"slices"
	"strings"

	"hyperkube/internal/host/hostjournal"
)

// Place is where in a built-in chain, such as FORWARD, a jump must be, relative to the rules of other programs.
type Place int

// First, Last and AfterServices are the places of jumps.
const (
	// First is before all rules of other programs. All jumps with this place that one Writer puts into a built-in
	// chain are kept in order.
	First Place = iota
	// Last is after the rules that exist when the jump is created.
	Last
	// AfterServices is before the rules of other programs but after the jumps of service proxies,
	// whose chains reject and drop packets to Services.
	AfterServices
)

// Jump is a rule in a built-in chain, such as FORWARD, that jumps to a chain of hyperkube. It makes
// the kernel evaluate the rules of that chain.
type Jump struct {
	// From is the built-in chain.
	From Chain
	// Rule is the rule. Its comment identifies its owner, and its target is the chain.
	Rule Rule
	// Place is the same for all jumps of a user in one built-in chain.
	Place Place
}

// serviceChains is the prefix of the names of the chains of every service proxy, of hyperkube and
// of upstream's kube-proxy.
const serviceChains = "KUBE-"

// change returns the entry for the host journal that must be written before the jump is created, so that `hyperkube
// down` can remove the jump.
func (j Jump) change(mode Mode, family Family) hostjournal.Change {
	if mode == NFTables {
		return hostjournal.Change{Kind: hostjournal.NFTables, Name: string(family) + " " + j.From.String(), Args: []string{j.Rule.Target}}
	}
	// The journal contains the words of the rule without quotes, as they are passed to a program.
	words, err := shellWords(j.Rule.String())
	if err != nil {
		panic(err) // not possible: appendText quotes the comment
	}
	return hostjournal.Change{Kind: hostjournal.Rule, Name: string(family) + " " + j.From.String(), Args: words}
}

// is reports whether rule, an existing rule of the built-in chain, is this jump. Chains whose names
// begin with KUBE- can also be used by other programs, so the whole rule must match. For other
// chains the target is enough, because iptables-save can print the other words in another order and
// form.
func (j Jump) is(rule HostRule) bool {
	if rule.Target != j.Rule.Target {
		return false
	}
	if !strings.HasPrefix(j.Rule.Target, serviceChains) {
		return true
	}
	matches := j.Rule
	matches.Comment = ""
	text, _ := strings.CutSuffix(matches.String(), "-j "+j.Rule.Target)
	return strings.Contains(rule.Text, j.Rule.Comment) && strings.Contains(rule.Text, strings.TrimSpace(text))
}

// edit is one step of putting jumps in place: the removal of an existing rule of a built-in chain,
// or the insertion of a new one.
type edit struct {
	chain  Chain
	remove string // text of the rule to remove; empty for an insertion
	insert Rule
	// at is the number of the inserted rule, starting at 1. Zero appends it.
	at int
}

// edits returns the steps that put jumps in place, in order. It returns none if all jumps exist and
// are in place.
func (s *State) edits(jumps []Jump) []edit {
	var out []edit
	var done []Chain
	for _, j := range jumps {
		if slices.Contains(done, j.From) {
			continue
		}
		done = append(done, j.From)
		var group []Jump
		for _, other := range jumps {
			if other.From == j.From {
				group = append(group, other)
			}
		}
		if j.Place == First {
			out = append(out, firstEdits(s.BuiltIn[j.From], group)...)
			continue
		}
		rules := slices.Clone(s.BuiltIn[j.From])
		for _, j := range group {
			for _, e := range j.edits(rules) {
				out, rules = append(out, e), e.apply(rules)
			}
		}
	}
	return out
}

// firstEdits returns the steps that insert jumps before all rules of a built-in chain, whose
// present rules are rules. It returns none if all jumps exist in this order. If one is missing, all
// are inserted again, because a jump in the wrong position may accept what another one drops.
func firstEdits(rules []HostRule, jumps []Jump) []edit {
	var have []HostRule
	inOrder := true
	for _, rule := range rules {
		at := slices.IndexFunc(jumps, func(j Jump) bool { return j.is(rule) })
		if at < 0 {
			continue
		}
		inOrder = inOrder && at == len(have)
		have = append(have, rule)
	}
	if inOrder && len(have) == len(jumps) {
		return nil
	}
	var out []edit
	for _, rule := range have {
		out = append(out, edit{chain: jumps[0].From, remove: rule.Text})
	}
	for _, j := range slices.Backward(jumps) {
		out = append(out, edit{chain: j.From, insert: j.Rule, at: 1})
	}
	return out
}

// edits returns the steps that put j, whose Place is not First, in place. rules are the present
// rules of the built-in chain. It returns none if j is in place.
func (j Jump) edits(rules []HostRule) []edit {
	if j.Place == Last {
		if !slices.ContainsFunc(rules, j.is) {
			return []edit{{chain: j.From, insert: j.Rule}}
		}
		return nil
	}
	behind := 0 // number of rules up to the last jump of a service proxy
	for i, rule := range rules {
		if strings.HasPrefix(rule.Target, serviceChains) {
			behind = i + 1
		}
	}
	var out []edit
	// The service proxy inserted its jumps between the read and the write of misplaced ones.
	for _, rule := range rules[:behind] {
		if j.is(rule) {
			out = append(out, edit{chain: j.From, remove: rule.Text})
		}
	}
	if !slices.ContainsFunc(rules[behind:], j.is) {
		out = append(out, edit{chain: j.From, insert: j.Rule, at: behind - len(out) + 1})
	}
	return out
}

// apply returns the rules of a built-in chain after the step e. It may modify rules.
func (e edit) apply(rules []HostRule) []HostRule {
	inserted := HostRule{Target: e.insert.Target, Text: e.insert.String()}
	switch {
	case e.remove != "":
		at := slices.IndexFunc(rules, func(r HostRule) bool { return r.Text == e.remove })
		return slices.Delete(rules, at, at+1)
	case e.at > 0:
		return slices.Insert(rules, e.at-1, inserted)
	}
	return append(rules, inserted)
}
