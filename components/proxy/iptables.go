package proxy

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/iptables"
)

// writer writes the chains of one IP family to the kernel.
type writer struct {
	family  string // "4" or "6", as in the journal
	command string // "iptables" or "ip6tables", the prefix of the -restore and -save commands
	// journal records the chains and rules, so that `hyperkube down` can remove them.
	journal *hostjournal.Journal
	guard   *iptables.Guard
	// applied is the state of the kernel. It is valid if started is true.
	applied rules.Set
	started bool
	// restarted is true if the writer had been started before.
	restarted bool
	// last is the number of rules in the last write, by table.
	last map[string]int
}

// countRules counts the rules in the input of iptables-restore, by table.
func countRules(input string) map[string]int {
	out, table := map[string]int{}, ""
	for line := range strings.Lines(input) {
		switch {
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
			out[table]++
		}
	}
	return out
}

// newWriter returns the writer of an IP family. guard is notified of the processes that write for
// it; it may be nil.
func newWriter(ipv6 bool, journal *hostjournal.Journal, guard *iptables.Guard) *writer {
	if ipv6 {
		return &writer{family: "6", command: "ip6tables", journal: journal, guard: guard}
	}
	return &writer{family: "4", command: "iptables", journal: journal, guard: guard}
}

// jump is a rule in a chain of the kernel or of another program that jumps to one of the proxy's
// chains.
type jump struct {
	table, chain, to, comment string
	match                     []string
}

// rule returns the arguments for iptables.
func (j jump) rule() []string {
	return append(append([]string{"-m", "comment", "--comment", j.comment}, j.match...), "-j", j.to)
}

// text returns the rule in the format of iptables-restore.
func (j jump) text() string {
	return fmt.Sprintf("-m comment --comment %q %s -j %s", j.comment, strings.Join(j.match, " "), j.to)
}

// is reports whether a line of iptables-save is the jump. The order of matches in the output may
// differ.
func (j jump) is(line string) bool {
	return strings.HasPrefix(line, "-A "+j.chain+" ") && strings.HasSuffix(line, " -j "+j.to) &&
		strings.Contains(line, j.comment) && strings.Contains(line, strings.Join(j.match, " "))
}

// jumpLines returns the iptables-restore lines that insert the jumps of a table, or none if the output
// of iptables-save contains them in order. If one is missing, all jumps of its chain are inserted
// again, because a jump in the wrong position may accept what another one drops.
func jumpLines(table, saved string) string {
	_, rest, _ := strings.Cut(saved, "*"+table+"\n")
	text, _, _ := strings.Cut(rest, "COMMIT")
	lines := strings.Split(text, "\n")
	want := map[string][]jump{} // keyed by chain
	for _, j := range jumps() {
		if j.table == table {
			want[j.chain] = append(want[j.chain], j)
		}
	}
	var out strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(want)) {
		var have []string
		inOrder := true
		for _, line := range lines {
			at := slices.IndexFunc(want[chain], func(j jump) bool { return j.is(line) })
			if at < 0 {
				continue
			}
			inOrder = inOrder && at == len(have)
			have = append(have, line)
		}
		if inOrder && len(have) == len(want[chain]) {
			continue
		}
		for _, line := range have {
			out.WriteString("-D " + strings.TrimPrefix(line, "-A ") + "\n")
		}
		for _, j := range slices.Backward(want[chain]) {
			out.WriteString("-I " + chain + " 1 " + j.text() + "\n")
		}
	}
	return out.String()
}

var newOnly = []string{"-m", "conntrack", "--ctstate", "NEW"}

// jumps returns the jumps from the built-in chains to the proxy's chains, in order: packets outside
// the loadBalancerSourceRanges are dropped before KUBE-FORWARD accepts packets marked for
// masquerading.
func jumps() []jump {
	const portals, postrouting = "kubernetes service portals", "kubernetes postrouting rules"
	const firewall, external = "kubernetes load balancer firewall", "kubernetes externally-visible service portals"
	return []jump{
		{table: "filter", chain: "INPUT", to: "KUBE-FIREWALL", comment: "kubernetes firewall"},
		{table: "filter", chain: "INPUT", to: "KUBE-PROXY-FIREWALL", comment: firewall, match: newOnly},
		{table: "filter", chain: "INPUT", to: "KUBE-NODEPORTS", comment: "kubernetes health check service ports"},
		{table: "filter", chain: "INPUT", to: "KUBE-EXTERNAL-SERVICES", comment: external, match: newOnly},
		{table: "filter", chain: "FORWARD", to: "KUBE-PROXY-FIREWALL", comment: firewall, match: newOnly},
		{table: "filter", chain: "FORWARD", to: "KUBE-FORWARD", comment: "kubernetes forwarding rules"},
		{table: "filter", chain: "FORWARD", to: "KUBE-SERVICES", comment: portals, match: newOnly},
		{table: "filter", chain: "FORWARD", to: "KUBE-EXTERNAL-SERVICES", comment: external, match: newOnly},
		{table: "filter", chain: "OUTPUT", to: "KUBE-FIREWALL", comment: "kubernetes firewall"},
		{table: "filter", chain: "OUTPUT", to: "KUBE-PROXY-FIREWALL", comment: firewall, match: newOnly},
		{table: "filter", chain: "OUTPUT", to: "KUBE-SERVICES", comment: portals, match: newOnly},
		{table: "nat", chain: "OUTPUT", to: "KUBE-SERVICES", comment: portals},
		{table: "nat", chain: "PREROUTING", to: "KUBE-SERVICES", comment: portals},
		{table: "nat", chain: "POSTROUTING", to: "KUBE-POSTROUTING", comment: postrouting},
	}
}

// chainPrefixes match the chains of individual services. The host journal records these patterns
// instead of each chain, because it syncs every record to disk and the chains change too often.
var chainPrefixes = []string{"KUBE-SVC-*", "KUBE-SVL-*", "KUBE-SEP-*", "KUBE-EXT-*", "KUBE-FW-*"}

// write applies the difference between the kernel's state and set.
func (w *writer) write(ctx context.Context, set rules.Set) error {
	if !w.started {
		return w.start(ctx, set)
	}
	input := rules.Restore(w.applied, set)
	if input == "" {
		w.last = nil
		return nil
	}
	if err := w.restore(ctx, input); err != nil {
		// The kernel's state is unknown; the next write reads it.
		w.started = false
		return err
	}
	w.applied = set
	return nil
}

// start writes everything, removes leftovers of an earlier proxy, and adds missing jumps, in one
// atomic iptables-restore.
func (w *writer) start(ctx context.Context, set rules.Set) error {
	if err := w.journal.Record(w.changes(set)...); err != nil {
		return err
	}
	saved, err := w.run(ctx, w.command+"-save", nil)
	if err != nil {
		return err
	}
	var input strings.Builder
	input.WriteString(rules.Restore(rules.Leftover(saved), set))
	input.WriteString("*mangle\n:" + rules.Canary + " - [0:0]\n:" + rules.Hint + " - [0:0]\nCOMMIT\n")
	for _, table := range []string{"filter", "nat"} {
		if lines := jumpLines(table, saved); lines != "" {
			input.WriteString("*" + table + "\n" + lines + "COMMIT\n")
		}
	}
	if err := w.restore(ctx, input.String()); err != nil {
		return err
	}
	w.applied, w.started = set, true
	return nil
}

// check reports whether written rules are missing. If so, the next write writes all rules.
func (w *writer) check(ctx context.Context) (missing bool) {
	if !w.started {
		return false
	}
	saved, err := w.run(ctx, w.command+"-save", nil)
	if err == nil && w.complete(saved) {
		return false
	}
	w.started, w.restarted = false, true
	return true
}

// complete reports whether the output of iptables-save contains all chains with the same number of
// rules as written. Rules are not compared by text, because they are printed in another form than
// written.
func (w *writer) complete(saved string) bool {
	all := map[string]rules.Table{"nat": w.applied.NAT, "filter": w.applied.Filter, "mangle": {rules.Canary: nil, rules.Hint: nil}}
	for name, table := range all {
		_, rest, _ := strings.Cut(saved, "*"+name+"\n")
		text, _, _ := strings.Cut(rest, "COMMIT")
		count := map[string]int{}
		for line := range strings.Lines(text) {
			if chain, ok := strings.CutPrefix(line, ":"); ok {
				chain, _, _ = strings.Cut(chain, " ")
				count[chain] += 0
			} else if chain, ok := strings.CutPrefix(line, "-A "); ok {
				chain, _, _ = strings.Cut(chain, " ")
				count[chain]++
			}
		}
		for chain, list := range table {
			if n, exists := count[chain]; !exists || n != len(list) {
				return false
			}
		}
	}
	return jumpLines("nat", saved) == "" && jumpLines("filter", saved) == ""
}

func (w *writer) changes(set rules.Set) []hostjournal.Change {
	changes := []hostjournal.Change{
		{Kind: hostjournal.Chain, Name: w.family + " mangle " + rules.Canary}, {Kind: hostjournal.Chain, Name: w.family + " mangle " + rules.Hint},
	}
	for table, chains := range map[string]rules.Table{"nat": set.NAT, "filter": set.Filter} {
		for chain := range chains {
			if !perService(chain) {
				changes = append(changes, hostjournal.Change{Kind: hostjournal.Chain, Name: w.family + " " + table + " " + chain})
			}
		}
		for _, prefix := range chainPrefixes {
			changes = append(changes, hostjournal.Change{Kind: hostjournal.Chain, Name: w.family + " " + table + " " + prefix})
		}
	}
	for _, j := range jumps() {
		changes = append(changes, hostjournal.Change{Kind: hostjournal.Rule, Name: w.family + " " + j.table + " " + j.chain, Args: j.rule()})
	}
	return changes
}

func perService(chain string) bool {
	for _, prefix := range chainPrefixes {
		if strings.HasPrefix(chain, strings.TrimSuffix(prefix, "*")) {
			return true
		}
	}
	return false
}

func (w *writer) restore(ctx context.Context, input string) error {
	_, err := w.run(ctx, w.command+"-restore", []byte(input), "-w", "10", "--noflush")
	if err == nil {
		w.last = countRules(input)
	}
	return err
}

func (w *writer) run(ctx context.Context, name string, input []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	err := w.guard.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
