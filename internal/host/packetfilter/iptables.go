package packetfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// iptables is the Backend that runs the programs iptables-save and iptables-restore, or those of
// IPv6.
type iptables struct {
	guard *Guard // notified of the processes that write; may be nil
}

// Read returns the rules of all programs in one address family, as iptables-save prints them.
func (b iptables) Read(ctx context.Context, family Family) (*State, error) {
	saved, err := Save(ctx, family)
	if err != nil {
		return nil, err
	}
	return ParseState(saved), nil
}

// Apply makes change, atomically in each table, with one call of iptables-restore.
func (b iptables) Apply(ctx context.Context, family Family, change Change) error {
	return b.restore(ctx, family, change.String())
}

// Save returns the rules of all tables of a family in the network namespace of the calling thread,
// as iptables-save prints them.
func Save(ctx context.Context, family Family) (string, error) {
	path, err := tool(family, "save")
	if err != nil {
		return "", err
	}
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", programError(ctx, cmd, err, &stderr)
	}
	return out.String(), nil
}

// restore runs iptables-restore, which applies input atomically per table. It does not change
// chains that input does not name. If input is empty, it does nothing.
func (b iptables) restore(ctx context.Context, family Family, input string) error {
	if input == "" {
		return nil
	}
	path, err := tool(family, "restore")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "--noflush", "-w", "10")
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err = b.guard.start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return programError(ctx, cmd, err, &stderr)
	}
	return nil
}

func programError(ctx context.Context, cmd *exec.Cmd, err error, stderr *bytes.Buffer) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(stderr.String()))
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
	return "", fmt.Errorf("%s %w: install iptables", name, ErrNotInstalled)
}

// ErrNotInstalled is wrapped by the error if a program of iptables is not installed.
var ErrNotInstalled = errors.New("not found on this machine")

// String returns the input of `iptables-restore --noflush` that makes the change, or "" if there is
// nothing to change. Equal changes have equal strings, so that tests can compare them.
func (c Change) String() string {
	var edits []edit
	if len(c.Jumps) > 0 {
		edits = c.State.edits(c.Jumps)
	}
	var out []byte
	for _, table := range tables() {
		replace, remove := sortedChains(maps.Keys(c.Replace), table), sortedChains(slices.Values(c.Remove), table)
		create := slices.DeleteFunc(sortedChains(slices.Values(c.Create), table), func(chain Chain) bool {
			_, exists := c.State.Rules[chain]
			return exists
		})
		header := len(out)
		// Declaring a chain creates it, or removes its rules.
		for _, list := range [][]Chain{replace, create, remove} {
			for _, chain := range list {
				out = fmt.Appendf(out, ":%s - [0:0]\n", chain.Name)
			}
		}
		for _, chain := range replace {
			for _, rule := range c.Replace[chain] {
				out = append(append(append(out, "-A "...), chain.Name...), ' ')
				out = append(rule.appendText(out), '\n')
			}
		}
		for _, e := range edits {
			if e.chain.Table == table {
				out = append(append(out, e.line()...), '\n')
			}
		}
		for _, chain := range remove {
			out = fmt.Appendf(out, "-X %s\n", chain.Name)
		}
		if len(out) > header {
			out = slices.Insert(append(out, "COMMIT\n"...), header, []byte("*"+string(table)+"\n")...)
		}
	}
	return string(out)
}

// line returns the line of an iptables-restore input that executes the step e: it removes or inserts a rule of a
// built-in chain.
func (e edit) line() string {
	switch {
	case e.remove != "":
		return "-D " + e.chain.Name + " " + e.remove
	case e.at > 0:
		return fmt.Sprintf("-I %s %d %s", e.chain.Name, e.at, e.insert)
	}
	return "-A " + e.chain.Name + " " + e.insert.String()
}

// sortedChains returns those of all chains that belong to table, sorted by name.
func sortedChains(all iter.Seq[Chain], table Table) []Chain {
	var out []Chain
	for chain := range all {
		if chain.Table == table {
			out = append(out, chain)
		}
	}
	slices.SortFunc(out, Chain.compare)
	return out
}
