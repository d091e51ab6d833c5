package podnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
)

// The chains of this package. Other components write the rules of HK-NOMASQ, HK-POLICY and the
// chains that match policies. This package only creates and removes these chains together with the
// chains that jump to them.
const (
	chainForward     = "HK-FORWARD"
	chainInput       = "HK-INPUT"
	chainPolicy      = "HK-POLICY"
	policies         = "HK-NP-*"
	chainMasquerade  = "HK-POSTROUTING"
	chainNoMasq      = "HK-NOMASQ"
	chainHostPorts   = "HK-HOSTPORTS"
	chainHostPortsSN = "HK-HOSTPORTS-MASQ"
)

// jumps are the rules in built-in chains that jump to the chains of this package. In the table
// filter they are inserted before all rules except those of kube-proxy, which reject and drop
// packets to Services without endpoints. In the other tables they are appended.
var jumps = []packetfilter.Jump{
	{From: nat("POSTROUTING"), Place: packetfilter.Last, Rule: packetfilter.Rule{Comment: "hyperkube pod network", Target: chainMasquerade}},
	{From: nat("PREROUTING"), Place: packetfilter.Last, Rule: packetfilter.Rule{Comment: "hyperkube host ports", DstLocal: true, Target: chainHostPorts}},
	{From: nat("OUTPUT"), Place: packetfilter.Last, Rule: packetfilter.Rule{Comment: "hyperkube host ports", DstLocal: true, Target: chainHostPorts}},
	{From: filter("FORWARD"), Place: packetfilter.AfterServices, Rule: packetfilter.Rule{Comment: "hyperkube pod network", Target: chainForward}},
	{From: filter("INPUT"), Place: packetfilter.AfterServices, Rule: packetfilter.Rule{Comment: "hyperkube services of this host", Target: chainInput}},
	// The mangle table is evaluated before all rules in the filter table.
	{From: mangle("FORWARD"), Place: packetfilter.Last, Rule: packetfilter.Rule{Comment: "hyperkube network policies", Target: chainPolicy}},
}

func nat(chain string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.NAT, Name: chain}
}

func filter(chain string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.Filter, Name: chain}
}

func mangle(chain string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.Mangle, Name: chain}
}

// sharedChains are the chains that this package creates, because its rules jump to them, and whose
// rules other components write.
var sharedChains = []packetfilter.Chain{nat(chainNoMasq), mangle(chainPolicy), mangle(policies)}

// Chains returns a chain that exists if the rules of a pod network have been written, for packetfilter.Mode.SelectFor.
func Chains() []packetfilter.Chain { return []packetfilter.Chain{nat(chainMasquerade)} }

// newWriter returns the packet filter writer for the rules of the pod network.
func newWriter(cfg Config) *packetfilter.Writer {
	return packetfilter.NewWriter(packetfilter.Config{
		Owner:   "the pod network",
		Shared:  sharedChains,
		Guarded: []string{chainForward, chainInput, chainMasquerade, chainHostPorts, chainHostPortsSN},
		Mode:    cfg.PacketFilter, Journal: cfg.Journal, Log: cfg.Log,
	})
}

// setupRules writes the rules of each family that has a CIDR, whether they exist or not. The caller
// must hold n.mu, because it reads n.cidrs.
func (n *Network) setupRules(ctx context.Context) error {
	for _, cidr := range n.cidrs {
		family := familyOf(cidr.Addr())
		n.writer.Forget(family)
		if err := n.writer.Sync(ctx, family, n.rules(cidr)); err != nil {
			return fmt.Errorf("writing rules of the pod network: %w", err)
		}
	}
	return nil
}

// Maintain restores the rules of the pod network whenever another program removes them,
// for example by reloading a firewall, until ctx is done. Call it once. It restores nothing before
// Setup has succeeded.
func (n *Network) Maintain(ctx context.Context) { n.writer.Maintain(ctx, n.restoreLost) }

// restoreLost checks the rules of each family, writes those with missing rules again, and reports whether any were
// missing. It does nothing before the bridge is set up.
func (n *Network) restoreLost(ctx context.Context) (lost bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bridge == 0 {
		return false, nil
	}
	for _, cidr := range n.cidrs {
		family, rules := familyOf(cidr.Addr()), n.rules(cidr)
		missing, err := n.writer.Missing(ctx, family, rules)
		if err == nil && missing {
			lost, err = true, n.writer.Sync(ctx, family, rules)
		}
		if err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// rules returns the chains and jumps of this package for the address family of the pod CIDR. The
// caller must hold n.mu, because it reads the host ports.
func (n *Network) rules(cidr netip.Prefix) packetfilter.Ruleset {
	bridge := packetfilter.Link{Name: n.cfg.Bridge}
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if cidr.Addr().Is6() {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	chains := packetfilter.Chains{
		nat(chainMasquerade): {
			{Target: chainNoMasq},
			{Target: chainHostPortsSN},
			{Dst: packetfilter.In(multicast), Target: packetfilter.Return},
			{Src: packetfilter.In(cidr), Out: packetfilter.Link{Name: n.cfg.Bridge, Not: true}, Target: packetfilter.Masquerade},
		},
		filter(chainForward): {{In: bridge, Target: packetfilter.Accept}, {Out: bridge, Target: packetfilter.Accept}},
		// Firewalls of hosts often only accept known sources. Accept connections from pods to
		// Services on this host, especially the API server. The host's firewall decides about other
		// connections from pods to the host.
		filter(chainInput): {{In: bridge, Conn: packetfilter.ConnState{States: packetfilter.Translated}, Target: packetfilter.Accept}},
	}
	for _, port := range n.cfg.OpenPorts {
		chains[filter(chainInput)] = append(chains[filter(chainInput)], packetfilter.Rule{
			In: bridge, Protocol: "tcp", Ports: packetfilter.Ports{First: uint16(port)}, Target: packetfilter.Accept,
		})
	}
	maps.Copy(chains, n.portRules(familyOf(cidr.Addr())))
	return packetfilter.Ruleset{Chains: chains, Jumps: jumps}
}

func familyOf(addr netip.Addr) packetfilter.Family { return packetfilter.FamilyOf(addr.Is6()) }

// setupSysctls enables IP forwarding and sets the other sysctls that the pod network needs. If those of the bridge do
// not exist, it loads the kernel module br_netfilter; it only logs if that fails.
func (n *Network) setupSysctls() error {
	want := map[string]string{}
	for _, cidr := range n.cidrs {
		if cidr.Addr().Is4() {
			want["net/ipv4/ip_forward"] = "1"
			want["net/bridge/bridge-nf-call-iptables"] = "1"
			// Packets to host ports on 127.0.0.1 leave through the bridge with that source address.
			want["net/ipv4/conf/"+n.cfg.Bridge+"/route_localnet"] = "1"
			// When Services are routed to the bridge, the kernel would send ICMP redirects to pods.
			// These are wrong, and count against the rate limit of ICMP errors, such as host
			// unreachable. Other links still send redirects if their own sysctl enables them.
			want["net/ipv4/conf/all/send_redirects"] = "0"
			want["net/ipv4/conf/"+n.cfg.Bridge+"/send_redirects"] = "0"
		} else {
			want["net/ipv6/conf/all/forwarding"] = "1"
			want["net/bridge/bridge-nf-call-ip6tables"] = "1"
		}
	}
	for name, value := range want {
		err := n.sysctl(name, value)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "net/bridge/"):
			// In some kernels br_netfilter is a module.
			_ = exec.Command("modprobe", "br_netfilter").Run()
			if err := n.sysctl(name, value); err != nil {
				n.log.Warn("kernel module br_netfilter is not available; Services do not work between pods on the same node: install the module and restart the container runtime", "sysctl", name, "err", err)
			}
		default:
			return fmt.Errorf("setting sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
		}
	}
	return nil
}

// sysctl sets the sysctl name, a path below /proc/sys, after recording its previous value in the
// host change journal. It does nothing if it already has the value.
func (n *Network) sysctl(name, value string) error {
	file := "/proc/sys/" + name
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	old := strings.TrimSpace(string(before))
	if old == value {
		return nil
	}
	// The sysctls of the bridge disappear with the bridge.
	if !strings.Contains(name, "/"+n.cfg.Bridge+"/") {
		if err := n.cfg.Journal.Record(hostjournal.Change{Kind: hostjournal.Sysctl, Name: name, Before: old}); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(value), 0o644)
}
