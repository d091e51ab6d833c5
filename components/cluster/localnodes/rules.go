package localnodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/iptables"
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

// rules returns the iptables-restore input of the bridge for the IP family of subnet. Traffic
// between the node bridge and the pod bridge is left to the rules of the pod network, which enforce
// network policies.
func (m *Network) rules(subnet netip.Prefix, saved string) string {
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
	// The nodes are part of this machine, so the host's firewall must not block them: they need the
	// API server, the kubelets and the pod network.
	fmt.Fprintf(&b, "-A %s -i %s -s %s -j ACCEPT\n", chainInput, bridge, subnet.Masked())
	writeJumps(&b, "filter", saved)
	b.WriteString("COMMIT\n")
	return b.String()
}

// writeJumps writes the missing jumps of a table. They are inserted before the rules of other
// programs but after those of kube-proxy, which block traffic that Services do not accept.
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
			if strings.HasPrefix(hostjournal.JumpTarget(words), "KUBE-") {
				behind = at
			}
		}
		b.WriteString(j.InsertAt(behind+1) + "\n")
	}
}

// MaintainRules restores the rules of EnsureBridge when another program removes some of them, until ctx
// is done. It does nothing while there is no bridge. The host journal already contains the rules.
func (m *Network) MaintainRules(ctx context.Context, log *slog.Logger) {
	guard := iptables.NewGuard(0, log, chain, chainInput)
	guard.Maintain(ctx, "local nodes", func(ctx context.Context) (lost bool, err error) {
		for _, subnet := range m.subnets() {
			family := iptables.Of(subnet.Addr().Is6())
			saved, err := iptables.Save(ctx, family)
			if err != nil {
				return lost, err
			}
			if m.hasAllRules(subnet, saved) || !m.HasBridge() {
				continue
			}
			lost = true
			if err := guard.Restore(ctx, family, m.rules(subnet, saved)); err != nil {
				return lost, fmt.Errorf("restoring the iptables rules of the local nodes: %w", err)
			}
		}
		return lost, nil
	})
}

// hasAllRules reports whether saved, the output of iptables-save, contains all rules for the IP family of
// subnet.
func (m *Network) hasAllRules(subnet netip.Prefix, saved string) bool {
	for _, j := range jumps {
		if !j.In(saved) {
			return false
		}
	}
	return iptables.Complete(saved, m.rules(subnet, saved))
}
