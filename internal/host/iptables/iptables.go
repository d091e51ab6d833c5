// Package iptables runs iptables-save and iptables-restore: one call to read all rules, and one
// call to write many rules atomically.
package iptables

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"hyperkube/internal/host/hostjournal"
)

// Family is an address family, in the notation of the host change journal.
type Family string

// The address families.
const (
	IPv4 Family = "4"
	IPv6 Family = "6"
)

// Of returns the family of an address.
func Of(is6 bool) Family {
	if is6 {
		return IPv6
	}
	return IPv4
}

// Save returns the rules of all tables, as iptables-save prints them.
func Save(ctx context.Context, family Family) (string, error) {
	path, err := tool(family, "save")
	if err != nil {
		return "", err
	}
	return run(exec.CommandContext(ctx, path))
}

// Restore applies rules, the input of iptables-restore, atomically per table. It does not change
// chains that rules does not name. If rules is empty, it does nothing.
func Restore(ctx context.Context, family Family, rules string) error {
	return (*Guard)(nil).Restore(ctx, family, rules)
}

// Restore is like the function Restore, but the guard ignores its changes. The guard may be nil.
func (g *Guard) Restore(ctx context.Context, family Family, rules string) error {
	if rules == "" {
		return nil
	}
	path, err := tool(family, "restore")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "--noflush", "-w", "10")
	cmd.Stdin = strings.NewReader(rules)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err = g.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// Complete reports whether each chain that rules, an input of iptables-restore, declares has as
// many rules in saved, the output of iptables-save, as rules appends to it. It ignores -I and -X
// commands.
func Complete(saved, rules string) bool {
	want, have := countRules(rules), countRules(saved)
	for chain, n := range want {
		if count, ok := have[chain]; !ok || count != n {
			return false
		}
	}
	return true
}

// Lines iterates over the output of iptables-save or the input of iptables-restore. It yields each
// declared chain as "TABLE CHAIN" with nil words, and each rule with the words that follow "-A
// CHAIN". The caller must not keep the words.
func Lines(text string) iter.Seq2[string, []string] {
	return func(yield func(chain string, words []string) bool) {
		table := ""
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			switch {
			case len(words) == 0:
			case words[0][0] == '*':
				table = words[0][1:] + " "
			case words[0][0] == ':':
				if !yield(table+words[0][1:], nil) {
					return
				}
			case words[0] == "-A" && len(words) > 1:
				if !yield(table+words[1], words[2:]) {
					return
				}
			}
		}
	}
}

// countRules returns the number of rules of each declared chain, keyed by "TABLE CHAIN".
func countRules(text string) map[string]int {
	count := map[string]int{}
	for chain, words := range Lines(text) {
		if words == nil {
			count[chain] += 0
		} else if _, declared := count[chain]; declared {
			count[chain]++
		}
	}
	return count
}

func tool(family Family, verb string) (string, error) {
	name := "iptables-" + verb
	if family == IPv6 {
		name = "ip6tables-" + verb
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if _, err := os.Stat(dir + "/" + name); err == nil {
			return dir + "/" + name, nil
		}
	}
	return "", fmt.Errorf("%s not found on this machine: install iptables", name)
}

func run(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// Jump is a rule in a built-in chain that jumps to a chain of hyperkube.
type Jump struct {
	Table, Chain, To string
	// Comment identifies the owner of the rule. It must not contain quotes.
	Comment string
	// Match are the match arguments of the rule, separated by spaces; an argument must not contain
	// spaces. If it is empty, the rule matches all packets.
	Match string
}

func (j Jump) rule() []string {
	return slices.Concat([]string{"-m", "comment", "--comment", j.Comment}, strings.Fields(j.Match), []string{"-j", j.To})
}

// Change returns the journal entry that must be recorded before the jump is created.
func (j Jump) Change(family Family) hostjournal.Change {
	return hostjournal.Change{Kind: hostjournal.Rule, Name: fmt.Sprintf("%s %s %s", family, j.Table, j.Chain), Args: j.rule()}
}

// line returns the rule in the format of iptables-restore.
func (j Jump) line() string {
	words := j.rule()
	words[3] = strconv.Quote(words[3])
	return strings.Join(words, " ")
}

// Insert returns the iptables-restore line that inserts the jump as the first rule.
func (j Jump) Insert() string { return j.InsertAt(1) }

// InsertAt returns the iptables-restore line that inserts the jump as rule number n, starting at 1.
func (j Jump) InsertAt(n int) string { return fmt.Sprintf("-I %s %d %s", j.Chain, n, j.line()) }

// Append returns the iptables-restore line that appends the jump.
func (j Jump) Append() string { return "-A " + j.Chain + " " + j.line() }

// In reports whether saved, the output of iptables-save, contains the jump. The order of the rule's
// arguments is irrelevant.
func (j Jump) In(saved string) bool {
	for chain, words := range Lines(saved) {
		if chain == j.Table+" "+j.Chain && hostjournal.JumpTarget(words) == j.To {
			return true
		}
	}
	return false
}
