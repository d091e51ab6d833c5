package hostchange

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

// tables returns go-iptables for the family of a change, and its three words.
func tables(c Change) (tool *iptables.IPTables, family, table, chain string, err error) {
	words := strings.Fields(c.Name)
	if len(words) != 3 {
		return nil, "", "", "", fmt.Errorf("%q is no chain of a table", c.Name)
	}
	protocol := iptables.ProtocolIPv4
	if words[0] == "6" {
		protocol = iptables.ProtocolIPv6
	}
	tool, err = iptables.New(iptables.IPFamily(protocol), iptables.Timeout(10))
	if err != nil {
		return nil, "", "", "", fmt.Errorf("looking for iptables: %w", err)
	}
	return tool, words[0], words[1], words[2], nil
}

// undoRules removes rules: all of a table at one instant, for each program that is
// run costs a busy machine tenths of a second. What cannot be removed so is removed
// one by one.
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
			input, unclear := deletions(saved, changes)
			if err = restoreRules(ctx, family, input); err == nil {
				changes = unclear
			}
		}
		for _, c := range changes { // none, as a rule
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

// deletions is the input of iptables-restore that removes the rules of changes, all
// of one family, from what iptables-save told. Of those that are unclear there is one
// that leads to the same chain and is written in another way.
func deletions(saved string, changes []Change) (input string, unclear []Change) {
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

// JumpTarget is where an iptables rule of these words leads; empty: nowhere.
func JumpTarget(words []string) string {
	if i := slices.Index(words, "-j"); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// shellWords are the words of a rule as iptables-save prints it, where those with
// spaces are in double quotes.
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
			return nil, fmt.Errorf("a word of rule %s has no end: %w", rule, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("a word of rule %s: %w", rule, err)
		}
		out, rule = append(out, word), rule[len(quoted):]
	}
	return out, nil
}

// savedRules is what iptables-save tells of a family.
func savedRules(ctx context.Context, family string) (string, error) {
	command := rulesCommand(family)
	saved, err := exec.CommandContext(ctx, command+"-save").Output()
	if err != nil {
		return "", fmt.Errorf("%s-save: %w", command, err)
	}
	return string(saved), nil
}

// restoreRules applies an input of iptables-restore; empty is nothing to do.
func restoreRules(ctx context.Context, family, input string) error {
	if input == "" {
		return nil
	}
	command := rulesCommand(family)
	restore := exec.CommandContext(ctx, command+"-restore", "-w", "10", "--noflush")
	restore.Stdin = strings.NewReader(input)
	var said bytes.Buffer
	restore.Stderr = &said
	if err := restore.Run(); err != nil {
		return fmt.Errorf("%s-restore: %w: %s", command, err, strings.TrimSpace(said.String()))
	}
	return nil
}

func rulesCommand(family string) string {
	if family == "6" {
		return "ip6tables"
	}
	return "iptables"
}

// deleteRule removes a rule as often as it is there. That the chain it jumps to
// is gone makes iptables fail to look for it: it is not there then.
func deleteRule(tool *iptables.IPTables, table, chain string, rule []string) error {
	for {
		there, err := tool.Exists(table, chain, rule...)
		if err != nil {
			var failed *iptables.Error
			if errors.As(err, &failed) && (failed.IsNotExist() || failed.ExitStatus() == 2) {
				return nil
			}
			return err
		}
		if !there {
			return nil
		}
		if err := tool.Delete(table, chain, rule...); err != nil {
			return err
		}
	}
}

// undoChains removes chains. A name that ends in "*" means all that begin so.
// All of a table go at one instant, for they lead to each other.
func undoChains(ctx context.Context, changes []Change) error {
	wanted := map[string]map[string][]string{} // family, table, patterns
	for _, c := range changes {
		words := strings.Fields(c.Name)
		if len(words) != 3 {
			return fmt.Errorf("%q is no chain of a table", c.Name)
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
			err = restoreRules(ctx, family, removal(saved, byTable))
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removal is the input of iptables-restore that removes the chains which match
// from what iptables-save told.
func removal(saved string, byTable map[string][]string) string {
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
