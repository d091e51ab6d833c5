package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"hyperkube/internal/host/hostjournal"
)

// Undo returns the functions with which hostjournal reverts the rules, chains and tables that this package
// has recorded in a journal.
func Undo() hostjournal.Functions {
	return hostjournal.Functions{hostjournal.Rule: undoRules, hostjournal.Chain: undoChains, hostjournal.NFTables: undoNFT, hostjournal.Table: undoTables}
}

// chainOf returns the family and the chain that the name of a Rule or Chain contains.
func chainOf(c hostjournal.Change) (Family, Chain, error) {
	words := strings.Fields(c.Name)
	if len(words) != 3 {
		return "", Chain{}, fmt.Errorf("%q is not the name of an iptables chain", c.Name)
	}
	return Family(words[0]), Chain{Table(words[1]), words[2]}, nil
}

// undoRules removes the rules of recorded changes. It removes all rules of a family with one
// iptables-restore, because each iptables command takes tenths of a second on a busy machine. Rules
// that cannot be removed this way are removed one by one.
func undoRules(ctx context.Context, changes []hostjournal.Change) error {
	byFamily := map[Family][]hostjournal.Change{}
	for _, c := range changes {
		family, _, _ := strings.Cut(c.Name, " ")
		byFamily[Family(family)] = append(byFamily[Family(family)], c)
	}
	var errs []error
	for family, changes := range byFamily {
		saved, err := Save(ctx, family)
		if err == nil {
			input, unclear := ruleDeletions(saved, changes)
			if err = (iptables{}).restore(ctx, family, input); err == nil {
				changes = unclear
			}
		}
		if len(changes) > 0 { // usually there are none
			errs = append(errs, deleteRules(family, changes))
		}
	}
	return errors.Join(errs...)
}

// ruleDeletions returns the input for iptables-restore that removes the rules of changes, which all
// have the same family. saved is the output of iptables-save. unclear contains the changes for
// which saved has a rule with the same jump target in a different notation.
func ruleDeletions(saved string, changes []hostjournal.Change) (input string, unclear []hostjournal.Change) {
	byTable := map[Table]string{}
	var inOrder []Table
	for _, c := range changes {
		_, from, err := chainOf(c)
		if err != nil {
			unclear = append(unclear, c)
			continue
		}
		want, target := slices.Sorted(slices.Values(c.Args)), jumpTarget(c.Args)
		found, alike := false, false
		for chain, rule := range lines(saved) {
			if chain != from || rule == declaration {
				continue
			}
			have, err := shellWords(rule)
			if err != nil || !slices.Equal(slices.Sorted(slices.Values(have)), want) {
				alike = alike || target == "" || jumpTarget(have) == target
				continue
			}
			found = true
			if byTable[chain.Table] == "" {
				inOrder = append(inOrder, chain.Table)
			}
			byTable[chain.Table] += "-D " + chain.Name + " " + rule + "\n"
		}
		if !found && alike {
			unclear = append(unclear, c)
		}
	}
	for _, table := range inOrder {
		input += "*" + string(table) + "\n" + byTable[table] + "COMMIT\n"
	}
	return input, unclear
}

// shellWords splits a rule printed by iptables-save into words. Words with spaces are in double
// quotes.
func shellWords(rule string) ([]string, error) {
	var out []string
	for rule = strings.TrimLeft(rule, " "); rule != ""; rule = strings.TrimLeft(rule, " ") {
		if rule[0] != '"' {
			word, rest, _ := strings.Cut(rule, " ")
			out, rule = append(out, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(rule)
		if err != nil {
			return nil, fmt.Errorf("parsing rule %s: unterminated word: %w", rule, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("parsing rule %s: %w", rule, err)
		}
		out, rule = append(out, word), rule[len(quoted):]
	}
	return out, nil
}

// deleteRules removes the rules of changes one by one with the program iptables.
func deleteRules(family Family, changes []hostjournal.Change) error {
	protocol := goiptables.ProtocolIPv4
	if family == IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	tool, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Timeout(10))
	if err != nil {
		return fmt.Errorf("finding iptables: %w", err)
	}
	var errs []error
	for _, c := range changes {
		_, chain, err := chainOf(c)
		if err == nil {
			err = deleteRule(tool, chain, c.Args)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rule in %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// deleteRule removes all occurrences of a rule in a chain. It is not an error if there is none. If
// the chain that the rule jumps to does not exist, iptables cannot search for the rule; then the
// rule does not exist either.
func deleteRule(tool *goiptables.IPTables, chain Chain, rule []string) error {
	for {
		exists, err := tool.Exists(string(chain.Table), chain.Name, rule...)
		if err != nil {
			var failed *goiptables.Error
			if errors.As(err, &failed) && (failed.IsNotExist() || failed.ExitStatus() == 2) {
				return nil
			}
			return err
		}
		if !exists {
			return nil
		}
		if err := tool.Delete(string(chain.Table), chain.Name, rule...); err != nil {
			return err
		}
	}
}

// undoChains removes the chains of recorded changes. A name with a trailing "*" matches all chains
// with that prefix. All chains of a table are removed atomically, because they refer to each other.
func undoChains(ctx context.Context, changes []hostjournal.Change) error {
	patterns := map[Family][]Chain{}
	for _, c := range changes {
		family, chain, err := chainOf(c)
		if err != nil {
			return err
		}
		patterns[family] = append(patterns[family], chain)
	}
	var errs []error
	for family, patterns := range patterns {
		saved, err := Save(ctx, family)
		if err == nil {
			err = iptables{}.restore(ctx, family, removalInput(saved, patterns, false))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
