package packetfilter

import (
	"iter"
	"slices"
	"strings"
)

// State describes the present rules of one address family in the kernel, those of all programs.
type State struct {
	// Rules contains the number of rules of each chain.
	Rules map[Chain]int
	// BuiltIn contains the rules of the built-in chains, in order.
	BuiltIn map[Chain][]HostRule
	// sets are the sets of nftables. It is nil for iptables.
	sets *nftSets
}

// HostRule is an existing rule in a built-in chain such as FORWARD, which this process or another program has
// created.
type HostRule struct {
	// Target is the target, or "" if there is none.
	Target string
	// Text is the rule in the notation of iptables-save, without "-A CHAIN".
	Text string
	// handle identifies the rule in nftables. It is zero for a rule that the same batch creates, which has an id.
	handle uint64
	id     uint32
}

// builtIn reports whether name is the name of a chain that exists in every kernel, in at least one
// table.
func builtIn(name string) bool {
	switch name {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// ParseState parses saved, the output of iptables-save. It ignores lines that it does not
// understand.
func ParseState(saved string) *State {
	s := &State{Rules: map[Chain]int{}, BuiltIn: map[Chain][]HostRule{}}
	for chain, rule := range lines(saved) {
		if rule == declaration {
			s.Rules[chain] += 0
			continue
		}
		if _, declared := s.Rules[chain]; declared {
			s.Rules[chain]++
		}
		if builtIn(chain.Name) {
			s.BuiltIn[chain] = append(s.BuiltIn[chain], HostRule{Target: jumpTarget(strings.Fields(rule)), Text: rule})
		}
	}
	return s
}

// declaration is what lines yields instead of a rule for the declaration of a chain. No rule begins
// with a colon.
const declaration = ":"

// lines iterates over the output of iptables-save. It yields the declaration of each chain, and the
// text of each rule behind "-A CHAIN ".
func lines(saved string) iter.Seq2[Chain, string] {
	return func(yield func(chain Chain, rule string) bool) {
		var table Table
		for line := range strings.Lines(saved) {
			line = strings.TrimSpace(line)
			chain, rule := Chain{Table: table}, declaration
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = Table(name)
				continue
			} else if text, ok := strings.CutPrefix(line, ":"); ok {
				chain.Name, _, _ = strings.Cut(text, " ")
			} else if text, ok := strings.CutPrefix(line, "-A "); ok {
				chain.Name, rule, _ = strings.Cut(text, " ")
			}
			if chain.Name != "" && !yield(chain, rule) {
				return
			}
		}
	}
}

// jumpTarget returns the target of the rule that consists of words, or "" if it has none.
func jumpTarget(words []string) string {
	if i := slices.Index(words, "-j"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// lacks reports whether something is missing in the kernel: a chain of chains does not exist or has
// another number of rules, a chain of create does not exist, or a jump does not exist or is not in
// place. It does not check sets.
func (s *State) lacks(chains Chains, create []Chain, jumps []Jump) bool {
	for chain, rules := range chains {
		if n, exists := s.Rules[chain]; !exists || n != len(rules) {
			return true
		}
	}
	for _, chain := range create {
		if _, exists := s.Rules[chain]; !exists {
			return true
		}
	}
	return len(s.edits(jumps)) > 0
}
