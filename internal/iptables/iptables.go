// Package iptables runs iptables-save and iptables-restore: one call to see
// what is there, one to write many rules at one instant.
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

	"hyperkube/internal/hostchange"
)

// Family is an address family, as the journal of host changes names it.
type Family string

// The families there are.
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

// Restore applies rules, the input of iptables-restore, at one instant a table,
// and leaves alone what they do not name. Empty rules are no call.
func Restore(ctx context.Context, family Family, rules string) error {
	return (*Guard)(nil).Restore(ctx, family, rules)
}

// Restore is the function of that name, which the guard does not take for what
// others do. A nil guard takes no note.
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

// Complete tells whether saved, the output of iptables-save, has as many rules in
// each chain that rules, an input of iptables-restore, declares as are appended to it
// there. What a "-I" or "-X" asks for is not looked at.
func Complete(saved, rules string) bool {
	want, have := countRules(rules), countRules(saved)
	for chain, n := range want {
		if there, ok := have[chain]; !ok || there != n {
			return false
		}
	}
	return true
}

// Lines yields what iptables-save prints or iptables-restore reads: the chains
// declared, as "TABLE CHAIN" with no words, and the rules, with the words that
// follow "-A CHAIN". The words must not be kept.
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

// countRules returns the number of rules of each declared chain, by "TABLE CHAIN".
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
	return "", fmt.Errorf("%s is not on this machine: install iptables", name)
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

// Jump is a rule in a chain of the kernel's that leads to one of ours.
type Jump struct {
	Table, Chain, To string
	// Comment says whose it is; it must have no quotes.
	Comment string
	// Match are the words that say for which packets it is, none of which may have
	// spaces: a list of words as a command line has it. Empty: for all.
	Match string
}

func (j Jump) rule() []string {
	return slices.Concat([]string{"-m", "comment", "--comment", j.Comment}, strings.Fields(j.Match), []string{"-j", j.To})
}

// Change is what the journal must know before the jump is made.
func (j Jump) Change(family Family) hostchange.Change {
	return hostchange.Change{Kind: hostchange.Rule, Name: fmt.Sprintf("%s %s %s", family, j.Table, j.Chain), Args: j.rule()}
}

// line is the rule as iptables-restore reads it.
func (j Jump) line() string {
	words := j.rule()
	words[3] = strconv.Quote(words[3])
	return strings.Join(words, " ")
}

// Insert is the line of iptables-restore that puts the jump first.
func (j Jump) Insert() string { return j.InsertAt(1) }

// InsertAt is the line of iptables-restore that makes the jump the rule of that
// number, from 1.
func (j Jump) InsertAt(n int) string { return fmt.Sprintf("-I %s %d %s", j.Chain, n, j.line()) }

// Append is the line of iptables-restore that puts the jump last.
func (j Jump) Append() string { return "-A " + j.Chain + " " + j.line() }

// In tells whether the output of iptables-save has the jump, in whatever order
// its parts are printed.
func (j Jump) In(saved string) bool {
	for chain, words := range Lines(saved) {
		if chain == j.Table+" "+j.Chain && hostchange.JumpTarget(words) == j.To {
			return true
		}
	}
	return false
}
