package localnodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
)

const (
	chain      = "HK-NODES"
	chainInput = "HK-NODES-INPUT"
)

var jumps = []iptables.Jump{
	{Table: "nat", Chain: "POSTROUTING", To: chain, Comment: "hyperkube nodes of this machine"},
	{Table: "filter", Chain: "FORWARD", To: chain, Comment: "hyperkube nodes of this machine"},
	{Table: "filter", Chain: "INPUT", To: chainInput, Comment: "hyperkube nodes of this machine"},
}

// rules are those of the bridge in the family of subnet. What goes between it and the pods' is left to
// the pod network, whose policies it passes.
func (m *Machine) rules(subnet netip.Prefix, saved string) string {
	bridge, pods := Bridge(m.Layout), m.Layout.Bridge()
	var b strings.Builder
	fmt.Fprintf(&b, "*nat\n:%s - [0:0]\n", chain)
	for _, cidr := range m.PodCIDRs {
		if cidr.Addr().Is6() == subnet.Addr().Is6() {
			fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n", chain, cidr)
		}
	}
	fmt.Fprintf(&b, "-A %s -s %s ! -o %s -j MASQUERADE\n", chain, subnet.Masked(), bridge)
	writeJumps(&b, "nat", saved)
	fmt.Fprintf(&b, "COMMIT\n*filter\n:%s - [0:0]\n:%s - [0:0]\n", chain, chainInput)
	fmt.Fprintf(&b, "-A %s -i %s ! -o %s -j ACCEPT\n", chain, bridge, pods)
	fmt.Fprintf(&b, "-A %s ! -i %s -o %s -j ACCEPT\n", chain, pods, bridge)
	// The nodes are this machine too, whatever its firewall keeps out: the API
	// server, kubelets and the network between pods must be reached.
	fmt.Fprintf(&b, "-A %s -i %s -s %s -j ACCEPT\n", chainInput, bridge, subnet.Masked())
	writeJumps(&b, "filter", saved)
	b.WriteString("COMMIT\n")
	return b.String()
}

// writeJumps writes those of a table that are not there: before the rules of others,
// but behind the service proxy's, which keep from services whom those do not want.
func writeJumps(b *strings.Builder, table, saved string) {
	for _, j := range jumps {
		if j.Table != table || j.In(saved) {
			continue
		}
		at, behind := 0, 0
		for chain, words := range iptables.Lines(saved) {
			if words == nil || table != "filter" || chain != j.Table+" "+j.Chain {
				continue
			}
			at++
			if strings.HasPrefix(hostchange.JumpTarget(words), "KUBE-") {
				behind = at
			}
		}
		b.WriteString(j.InsertAt(behind+1) + "\n")
	}
}

// KeepRules writes the rules of EnsureBridge again when others have removed any,
// until ctx ends, but none without the bridge. The journal is not needed: it knows them.
func (m *Machine) KeepRules(ctx context.Context, log *slog.Logger) {
	guard := iptables.NewGuard(0, log, chain, chainInput)
	guard.Keep(ctx, "the nodes of this machine", func(ctx context.Context) (lost bool, err error) {
		for _, subnet := range m.subnets() {
			family := iptables.Of(subnet.Addr().Is6())
			saved, err := iptables.Save(ctx, family)
			if err != nil {
				return lost, err
			}
			if m.whole(subnet, saved) || !m.HasBridge() {
				continue
			}
			lost = true
			if err := guard.Restore(ctx, family, m.rules(subnet, saved)); err != nil {
				return lost, fmt.Errorf("writing the rules of the nodes: %w", err)
			}
		}
		return lost, nil
	})
}

// whole tells whether all rules are in the output of iptables-save.
func (m *Machine) whole(subnet netip.Prefix, saved string) bool {
	for _, j := range jumps {
		if !j.In(saved) {
			return false
		}
	}
	return iptables.Complete(saved, m.rules(subnet, saved))
}
