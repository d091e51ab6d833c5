package localnodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"hyperkube/internal/host/packetfilter"
)

// chain is the name of the chains for traffic that is forwarded from and to additional nodes, chainInput that of the
// chain for traffic from them to this machine.
const (
	chain      = "HK-NODES"
	chainInput = "HK-NODES-INPUT"
)

// jumps are inserted before the rules of other programs but after those of kube-proxy, which block
// traffic that Services do not accept.
var jumps = []packetfilter.Jump{
	{From: nat("POSTROUTING"), Place: packetfilter.First, Rule: packetfilter.Rule{Comment: comment, Target: chain}},
	{From: filter("FORWARD"), Place: packetfilter.AfterServices, Rule: packetfilter.Rule{Comment: comment, Target: chain}},
	{From: filter("INPUT"), Place: packetfilter.AfterServices, Rule: packetfilter.Rule{Comment: comment, Target: chainInput}},
}

// comment is the comment of the iptables rules that jump to these chains.
const comment = "hyperkube nodes of this machine"

// nat returns a chain in the table nat.
func nat(chain string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.NAT, Name: chain}
}

// filter returns a chain in the table filter.
func filter(chain string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.Filter, Name: chain}
}

// newWriter returns a writer of the rules of the bridge. The caller records them in the journal.
func newWriter(mode packetfilter.Mode, log *slog.Logger) *packetfilter.Writer {
	return packetfilter.NewWriter(packetfilter.Config{Owner: "local nodes", Guarded: []string{chain, chainInput}, Mode: mode, Log: log})
}

// rules returns the rules of the bridge for the IP family of subnet. Traffic between the node bridge
// and the pod bridge is left to the rules of the pod network, which enforce network policies.
func (m *Network) rules(subnet netip.Prefix) packetfilter.Ruleset {
	subnet = subnet.Masked()
	bridge, pods := packetfilter.Link{Name: Bridge(m.Layout)}, packetfilter.Link{Name: m.Layout.Bridge()}
	notBridge, notPods := bridge, pods
	notBridge.Not, notPods.Not = true, true
	var masquerade []packetfilter.Rule
	for _, cidr := range m.PodCIDRs {
		if cidr.Addr().Is6() == subnet.Addr().Is6() {
			masquerade = append(masquerade, packetfilter.Rule{Dst: packetfilter.In(cidr), Target: packetfilter.Return})
		}
	}
	masquerade = append(masquerade, packetfilter.Rule{Src: packetfilter.In(subnet), Out: notBridge, Target: packetfilter.Masquerade})
	return packetfilter.Ruleset{
		Chains: packetfilter.Chains{
			nat(chain): masquerade,
			filter(chain): {
				{In: bridge, Out: notPods, Target: packetfilter.Accept},
				{In: notPods, Out: bridge, Target: packetfilter.Accept},
			},
			// The nodes are part of this machine, so the host's firewall must not block them: they
			// need the API server, the kubelets and the pod network.
			filter(chainInput): {{Src: packetfilter.In(subnet), In: bridge, Target: packetfilter.Accept}},
		},
		Jumps: jumps,
	}
}

// MaintainRules restores the rules of EnsureBridge when another program removes some of them, until ctx is done. It
// restores nothing while there is no bridge. The host journal already contains the rules.
func (m *Network) MaintainRules(ctx context.Context, log *slog.Logger) {
	writer := newWriter(m.PacketFilter, log)
	writer.Maintain(ctx, func(ctx context.Context) (lost bool, err error) {
		for _, subnet := range m.subnets() {
			family, rules := packetfilter.FamilyOf(subnet.Addr().Is6()), m.rules(subnet)
			missing, err := writer.Missing(ctx, family, rules)
			if err == nil && missing && m.HasBridge() {
				lost, err = true, writer.Sync(ctx, family, rules)
			}
			if err != nil {
				return lost, fmt.Errorf("restoring the rules of the local nodes: %w", err)
			}
		}
		return lost, nil
	})
}
