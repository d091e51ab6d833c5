package proxy

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	"hyperkube/components/proxy/rules"
)

// cleanUp removes the rules and chains of any service proxy, for both IP families. It is
// idempotent.
func cleanUp(ctx context.Context) error {
	var errs error
	for _, ipv6 := range []bool{false, true} {
		w := newWriter(ipv6, nil, nil)
		if _, err := exec.LookPath(w.command + "-save"); err != nil {
			continue
		}
		saved, err := w.run(ctx, w.command+"-save", nil)
		if err == nil {
			err = w.restoreIfAny(ctx, cleanupInput(saved))
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

func (w *writer) restoreIfAny(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	return w.restore(ctx, input)
}

// cleanupInput returns the input for iptables-restore that removes all service proxy rules in the output
// of iptables-save.
func cleanupInput(saved string) string {
	owned := map[string]bool{rules.Canary: true, rules.Hint: true}
	for chain := range rules.Build(rules.Config{}, nil).NAT {
		owned[chain] = true
	}
	for chain := range rules.Build(rules.Config{LocalhostNodePorts: true}, nil).Filter {
		owned[chain] = true
	}
	var out, flush, unlink, remove strings.Builder
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line
			flush.Reset()
			unlink.Reset()
			remove.Reset()
		case strings.HasPrefix(line, ":"):
			if chain, _, _ := strings.Cut(line[1:], " "); owned[chain] || perService(chain) {
				flush.WriteString(":" + chain + " - [0:0]\n")
				remove.WriteString("-X " + chain + "\n")
			}
		case strings.HasPrefix(line, "-A "):
			chain, _, _ := strings.Cut(line[3:], " ")
			_, to, _ := strings.Cut(line, " -j ")
			to, _, _ = strings.Cut(to, " ")
			if !owned[chain] && !perService(chain) && (owned[to] || perService(to)) {
				unlink.WriteString("-D " + line[3:] + "\n")
			}
		case line == "COMMIT" && flush.Len()+unlink.Len() > 0:
			out.WriteString(table + "\n" + flush.String() + unlink.String() + remove.String() + "COMMIT\n")
		}
	}
	return out.String()
}
