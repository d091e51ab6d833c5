package packetfilter

import (
	"iter"
	"slices"
	"strings"
)

// State describes the rules of one address family in the kernel, of all programs.
type State struct {
	// Rules contains the number of rules of each chain.
	Rules map[Chain]int
	// BuiltIn contains the rules of the built-in chains, in order.
	BuiltIn map[Chain][]HostRule
}

// HostRule is a rule of a built-in chain, of any program.
type HostRule struct {
	// Target is the target, or "" if there is none.
	Target string
	// Text is the rule in the notation of iptables-save, without "-A CHAIN".
	Text string
}

// builtIn reports whether a chain of any table exists in every kernel.
func builtIn(name string) bool {
	switch name {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// ParseState parses the output of iptables-save.
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

// declaration is yielded by lines for the declaration of a chain. A rule does not begin with a colon.
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

// jumpTarget returns the target of a rule, or "" if it has none.
func jumpTarget(words []string) string {
	if i := slices.Index(words, "-j"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// lacks reports whether one of the chains has another number of rules, or one of them, of the chains
// in create or of the jumps is missing or not in place.
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
