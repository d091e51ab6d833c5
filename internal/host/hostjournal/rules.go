package hostjournal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// tables returns go-iptables for the family of a change, and the family, table and chain of its
// name.
func tables(c Change) (tool *iptables.IPTables, family, table, chain string, err error) {
	words := strings.Fields(c.Name)
	if len(words) != 3 {
		return nil, "", "", "", fmt.Errorf("%q is not the name of an iptables chain", c.Name)
	}
	protocol := iptables.ProtocolIPv4
	if words[0] == "6" {
		protocol = iptables.ProtocolIPv6
	}
	tool, err = iptables.New(iptables.IPFamily(protocol), iptables.Timeout(10))
	if err != nil {
		return nil, "", "", "", fmt.Errorf("finding iptables: %w", err)
	}
	return tool, words[0], words[1], words[2], nil
}

// undoRules removes rules. It removes all rules of a table with one iptables-restore, because each
// iptables command takes tenths of a second on a busy machine. Rules that cannot be removed this
// way are removed one by one.
func undoRules(ctx context.Context, changes []Change) error {
	byFamily := map[string][]Change{}
	for _, c := range changes {
		family, _, _ := strings.Cut(c.Name, " ")
		byFamily[family] = append(byFamily[family], c)
	}
	var errs []error
	for family, changes := range byFamily {
		saved, err := savedRules(ctx, family)
		if err == nil {
			input, unclear := ruleDeletions(saved, changes)
			if err = restoreRules(ctx, family, input); err == nil {
				changes = unclear
			}
		}
		for _, c := range changes { // usually none
			tool, _, table, chain, err := tables(c)
			if err == nil {
				err = deleteRule(tool, table, chain, c.Args)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("rule in %s: %w", c.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ruleDeletions returns the input for iptables-restore that removes the rules of changes, which all
// have the same family. saved is the output of iptables-save. unclear contains the changes for
// which saved has a rule with the same jump target in a different notation.
func ruleDeletions(saved string, changes []Change) (input string, unclear []Change) {
	byTable := map[string]string{}
	var tables []string
	for _, c := range changes {
		words := strings.Fields(c.Name)
		if len(words) != 3 {
			unclear = append(unclear, c)
			continue
		}
		want, target := slices.Sorted(slices.Values(c.Args)), JumpTarget(c.Args)
		table, found, alike := "", false, false
		for line := range strings.Lines(saved) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "*") {
				table = line[1:]
			}
			rule, ours := strings.CutPrefix(line, "-A "+words[2]+" ")
			if !ours || table != words[1] {
				continue
			}
			have, err := shellWords(rule)
			if err != nil || !slices.Equal(slices.Sorted(slices.Values(have)), want) {
				alike = alike || target == "" || JumpTarget(have) == target
				continue
			}
			found = true
			if byTable[table] == "" {
				tables = append(tables, table)
			}
			byTable[table] += "-D " + words[2] + " " + rule + "\n"
		}
		if !found && alike {
			unclear = append(unclear, c)
		}
	}
	for _, table := range tables {
		input += "*" + table + "\n" + byTable[table] + "COMMIT\n"
	}
	return input, unclear
}

// JumpTarget returns the jump target of an iptables rule, or an empty string if it has none.
func JumpTarget(words []string) string {
	if i := slices.Index(words, "-j"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
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

// savedRules returns the output of iptables-save for a family.
func savedRules(ctx context.Context, family string) (string, error) {
	command := rulesCommand(family)
	saved, err := exec.CommandContext(ctx, command+"-save").Output()
	if err != nil {
		return "", fmt.Errorf("%s-save: %w", command, err)
	}
	return string(saved), nil
}

// restoreRules runs iptables-restore with input. It does nothing if input is empty.
func restoreRules(ctx context.Context, family, input string) error {
	if input == "" {
		return nil
	}
	command := rulesCommand(family)
	restore := exec.CommandContext(ctx, command+"-restore", "-w", "10", "--noflush")
	restore.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	restore.Stderr = &stderr
	if err := restore.Run(); err != nil {
		return fmt.Errorf("%s-restore: %w: %s", command, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

func rulesCommand(family string) string {
	if family == "6" {
		return "ip6tables"
	}
	return "iptables"
}

// deleteRule removes all occurrences of a rule. If the chain that the rule jumps to does not exist,
// iptables cannot search for the rule; then the rule does not exist either.
func deleteRule(tool *iptables.IPTables, table, chain string, rule []string) error {
	for {
		exists, err := tool.Exists(table, chain, rule...)
		if err != nil {
			var failed *iptables.Error
			if errors.As(err, &failed) && (failed.IsNotExist() || failed.ExitStatus() == 2) {
				return nil
			}
			return err
		}
		if !exists {
			return nil
		}
		if err := tool.Delete(table, chain, rule...); err != nil {
			return err
		}
	}
}

// undoChains removes chains. A name with a trailing "*" matches all chains with that prefix. All
// chains of a table are removed atomically, because they refer to each other.
func undoChains(ctx context.Context, changes []Change) error {
	wanted := map[string]map[string][]string{} // family, table, patterns
	for _, c := range changes {
		words := strings.Fields(c.Name)
		if len(words) != 3 {
			return fmt.Errorf("%q is not the name of an iptables chain", c.Name)
		}
		if wanted[words[0]] == nil {
			wanted[words[0]] = map[string][]string{}
		}
		wanted[words[0]][words[1]] = append(wanted[words[0]][words[1]], words[2])
	}
	var errs []error
	for family, byTable := range wanted {
		saved, err := savedRules(ctx, family)
		if err == nil {
			err = restoreRules(ctx, family, chainDeletions(saved, byTable))
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// chainDeletions returns the input for iptables-restore that removes the matching chains. saved is the
// output of iptables-save.
func chainDeletions(saved string, byTable map[string][]string) string {
	var out strings.Builder
	var table string
	var chains []string
	finish := func() {
		if len(chains) == 0 {
			return
		}
		out.WriteString("*" + table + "\n")
		for _, chain := range chains {
			out.WriteString(":" + chain + " - [0:0]\n")
		}
		for _, chain := range chains {
			out.WriteString("-X " + chain + "\n")
		}
		out.WriteString("COMMIT\n")
		chains = nil
	}
	for line := range strings.SplitSeq(saved, "\n") {
		switch {
		case strings.HasPrefix(line, "*"):
			finish()
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			chain, _, _ := strings.Cut(line[1:], " ")
			for _, pattern := range byTable[table] {
				prefix, many := strings.CutSuffix(pattern, "*")
				if chain == pattern || many && strings.HasPrefix(chain, prefix) {
					chains = append(chains, chain)
					break
				}
			}
		}
	}
	finish()
	return out.String()
}
