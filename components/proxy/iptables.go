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
	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
)

// writer brings the chains of one address family to the kernel.
type writer struct {
	family  string // "4" or "6", as the journal names it
	command string // "iptables" or "ip6tables", with which -restore and -save begin
	journal *hostchange.Journal
	guard   *iptables.Guard
	// there is what the kernel has; valid once started is true.
	there   rules.Set
	started bool
	// again: it had started before.
	again bool
	// last is how many rules were written the last time, by table.
	last map[string]int
}

// rulesIn counts the rules that iptables-restore is told to add, by table.
func rulesIn(input string) map[string]int {
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

// newWriter returns the writer of a family. guard learns which programs write for
// it; nil: nobody does.
func newWriter(ipv6 bool, journal *hostchange.Journal, guard *iptables.Guard) *writer {
	if ipv6 {
		return &writer{family: "6", command: "ip6tables", journal: journal, guard: guard}
	}
	return &writer{family: "4", command: "iptables", journal: journal, guard: guard}
}

// jump is a rule in a chain that is not ours, which leads to one that is.
type jump struct {
	table, chain, to, comment string
	match                     []string
}

// rule is the jump as iptables takes it.
func (j jump) rule() []string {
	return append(append([]string{"-m", "comment", "--comment", j.comment}, j.match...), "-j", j.to)
}

// text is the jump as iptables-restore takes it.
func (j jump) text() string {
	return fmt.Sprintf("-m comment --comment %q %s -j %s", j.comment, strings.Join(j.match, " "), j.to)
}

// is tells whether a line of iptables-save is the jump, in whatever order its
// matches are printed.
func (j jump) is(line string) bool {
	return strings.HasPrefix(line, "-A "+j.chain+" ") && strings.HasSuffix(line, " -j "+j.to) &&
		strings.Contains(line, j.comment) && strings.Contains(line, strings.Join(j.match, " "))
}

// lead returns the lines of iptables-restore that put the jumps of a table in
// place, none if the output of iptables-save has them in their order. Where one is
// missing, all of its chain are made anew: one that is put before another may
// accept what that one drops.
func lead(table, saved string) string {
	_, rest, _ := strings.Cut(saved, "*"+table+"\n")
	text, _, _ := strings.Cut(rest, "COMMIT")
	lines := strings.Split(text, "\n")
	want := map[string][]jump{} // by chain
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

// jumps lead from the built-in chains to ours, in the order in which a chain has
// them: what load balancers' source ranges keep out is dropped before KUBE-FORWARD
// accepts what is to be masqueraded.
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

// chainPrefixes are recorded in place of the chains of single services, which
// come and go too often to sync each to disk.
var chainPrefixes = []string{"KUBE-SVC-*", "KUBE-SVL-*", "KUBE-SEP-*", "KUBE-EXT-*", "KUBE-FW-*"}

// write brings set to the kernel: what differs from what is there.
func (w *writer) write(ctx context.Context, set rules.Set) error {
	if !w.started {
		return w.start(ctx, set)
	}
	input := rules.Restore(w.there, set)
	if input == "" {
		w.last = nil
		return nil
	}
	if err := w.restore(ctx, input); err != nil {
		// Whatever happened: the next write looks again.
		w.started = false
		return err
	}
	w.there = set
	return nil
}

// start writes everything, takes away what an earlier proxy left, and leads
// traffic to the chains where nothing does yet: all in one go.
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
		if lines := lead(table, saved); lines != "" {
			input.WriteString("*" + table + "\n" + lines + "COMMIT\n")
		}
	}
	if err := w.restore(ctx, input.String()); err != nil {
		return err
	}
	w.there, w.started = set, true
	return nil
}

// check looks whether all is there that was written, and has the next write write
// all if it is not, which it tells.
func (w *writer) check(ctx context.Context) (gone bool) {
	if !w.started {
		return false
	}
	saved, err := w.run(ctx, w.command+"-save", nil)
	if err == nil && w.complete(saved) {
		return false
	}
	w.started, w.again = false, true
	return true
}

// complete tells whether the output of iptables-save has all chains with as many
// rules as were written. How a rule is printed is not how it was written.
func (w *writer) complete(saved string) bool {
	all := map[string]rules.Table{"nat": w.there.NAT, "filter": w.there.Filter, "mangle": {rules.Canary: nil, rules.Hint: nil}}
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
			if n, there := count[chain]; !there || n != len(list) {
				return false
			}
		}
	}
	return lead("nat", saved) == "" && lead("filter", saved) == ""
}

func (w *writer) changes(set rules.Set) []hostchange.Change {
	changes := []hostchange.Change{
		{Kind: hostchange.Chain, Name: w.family + " mangle " + rules.Canary}, {Kind: hostchange.Chain, Name: w.family + " mangle " + rules.Hint},
	}
	for table, chains := range map[string]rules.Table{"nat": set.NAT, "filter": set.Filter} {
		for chain := range chains {
			if !perService(chain) {
				changes = append(changes, hostchange.Change{Kind: hostchange.Chain, Name: w.family + " " + table + " " + chain})
			}
		}
		for _, prefix := range chainPrefixes {
			changes = append(changes, hostchange.Change{Kind: hostchange.Chain, Name: w.family + " " + table + " " + prefix})
		}
	}
	for _, j := range jumps() {
		changes = append(changes, hostchange.Change{Kind: hostchange.Rule, Name: w.family + " " + j.table + " " + j.chain, Args: j.rule()})
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
		w.last = rulesIn(input)
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
