package podnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
)

// The chains of this package. HK-NOMASQ, HK-POLICY, and what begins as policies
// does, are for others to write to: only their names are known here, so that
// they go together with the chains that lead to them.
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

// toHost are the packets for the host itself.
const toHost = "-m addrtype --dst-type LOCAL"

// jumps lead from the kernel's chains to ours. In the table filter they are before
// all rules but those of the service proxy, which refuses and drops what is for
// services that are not there; elsewhere they are the last.
var jumps = []iptables.Jump{
	{Table: "nat", Chain: "POSTROUTING", To: chainMasquerade, Comment: "hyperkube pod network"},
	{Table: "nat", Chain: "PREROUTING", To: chainHostPorts, Comment: "hyperkube host ports", Match: toHost},
	{Table: "nat", Chain: "OUTPUT", To: chainHostPorts, Comment: "hyperkube host ports", Match: toHost},
	{Table: "filter", Chain: "FORWARD", To: chainForward, Comment: "hyperkube pod network"},
	{Table: "filter", Chain: "INPUT", To: chainInput, Comment: "hyperkube services of this host"},
	// Before everything in the table filter, whoever writes there.
	{Table: "mangle", Chain: "FORWARD", To: chainPolicy, Comment: "hyperkube network policies"},
}

var chains = map[string][]string{
	"nat":    {chainMasquerade, chainNoMasq, chainHostPorts, chainHostPortsSN},
	"filter": {chainForward, chainInput},
	"mangle": {chainPolicy, policies},
}

// setupRules writes the rules of each family that has a CIDR: one call to see
// what is there, one to write. The caller holds the lock.
func (n *Network) setupRules(ctx context.Context) error {
	var changes []hostchange.Change
	for _, cidr := range n.cidrs {
		family := familyOf(cidr.Addr())
		for _, table := range []string{"filter", "nat", "mangle"} {
			for _, name := range chains[table] {
				changes = append(changes, hostchange.Change{Kind: hostchange.Chain, Name: family + " " + table + " " + name})
			}
		}
		for _, j := range jumps {
			changes = append(changes, j.Change(iptables.Family(family)))
		}
	}
	if err := n.cfg.Journal.Record(changes...); err != nil {
		return err
	}
	for _, cidr := range n.cidrs {
		if err := n.writeRules(ctx, cidr); err != nil {
			return err
		}
	}
	return nil
}

// settleTries is how often the place of a jump is looked at again: the proxy
// inserts its own once, at its start.
const settleTries = 3

// writeRules writes the rules of the CIDR's family. The proxy may insert its
// jumps between what is read here and what is written, so that the place of ours
// is looked at once more.
func (n *Network) writeRules(ctx context.Context, cidr netip.Prefix) error {
	family := iptables.Of(cidr.Addr().Is6())
	for range settleTries {
		have, err := iptables.Save(ctx, family)
		if err != nil {
			return err
		}
		rules := n.rules(cidr, have)
		if err := n.guard.Restore(ctx, family, rules); err != nil {
			return fmt.Errorf("writing the pod network's iptables rules: %w", err)
		}
		if !strings.Contains(rules, "\n-I ") {
			break
		}
	}
	return nil
}

// Keep writes the rules again when others have removed any, as reloading a
// firewall does, until ctx ends. It is called once, and does nothing before Setup has
// succeeded.
func (n *Network) Keep(ctx context.Context) { n.guard.Keep(ctx, "the pod network", n.restoreLost) }

// restoreLost writes the rules of each family that lacks any, and tells whether
// there was one.
func (n *Network) restoreLost(ctx context.Context) (lost bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bridge == 0 {
		return false, nil
	}
	for _, cidr := range n.cidrs {
		have, err := iptables.Save(ctx, iptables.Of(cidr.Addr().Is6()))
		if err != nil {
			return lost, err
		}
		rules := n.rules(cidr, have)
		whole := iptables.Complete(have, rules) && !slices.ContainsFunc(jumps, func(j iptables.Jump) bool { return !j.In(have) })
		if whole {
			continue
		}
		lost = true
		if err := n.writeRules(ctx, cidr); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// rules returns the whole of this package's rules for the CIDR's family as
// input of iptables-restore, given what iptables-save tells.
func (n *Network) rules(cidr netip.Prefix, have string) string {
	existing := parseSave(have)
	var b strings.Builder
	b.WriteString("*nat\n")
	for _, chain := range []string{chainMasquerade, chainHostPorts, chainHostPortsSN} {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain)
	}
	if !existing.chains["nat "+chainNoMasq] {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chainNoMasq)
	}
	multicast := "224.0.0.0/4"
	if cidr.Addr().Is6() {
		multicast = "ff00::/8"
	}
	fmt.Fprintf(&b, "-A %s -j %s\n", chainMasquerade, chainNoMasq)
	fmt.Fprintf(&b, "-A %s -j %s\n", chainMasquerade, chainHostPortsSN)
	fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n", chainMasquerade, multicast)
	fmt.Fprintf(&b, "-A %s -s %s ! -o %s -j MASQUERADE\n", chainMasquerade, cidr, n.cfg.Bridge)
	n.writePorts(&b, familyOf(cidr.Addr()))
	writeJumps(&b, "nat", existing)
	b.WriteString("COMMIT\n*filter\n")
	fmt.Fprintf(&b, ":%s - [0:0]\n", chainForward)
	fmt.Fprintf(&b, "-A %s -i %s -j ACCEPT\n", chainForward, n.cfg.Bridge)
	fmt.Fprintf(&b, "-A %s -o %s -j ACCEPT\n", chainForward, n.cfg.Bridge)
	// Firewalls of hosts often let nobody in who is not known to them. What pods
	// ask of a Service on this host, the API server first of all, is let in;
	// what else they ask of the host itself is for its firewall to say.
	fmt.Fprintf(&b, ":%s - [0:0]\n", chainInput)
	fmt.Fprintf(&b, "-A %s -i %s -m conntrack --ctstate DNAT -j ACCEPT\n", chainInput, n.cfg.Bridge)
	for _, port := range n.cfg.OpenPorts {
		fmt.Fprintf(&b, "-A %s -i %s -p tcp --dport %d -j ACCEPT\n", chainInput, n.cfg.Bridge, port)
	}
	writeJumps(&b, "filter", existing)
	b.WriteString("COMMIT\n*mangle\n")
	if !existing.chains["mangle "+chainPolicy] {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chainPolicy)
	}
	writeJumps(&b, "mangle", existing)
	b.WriteString("COMMIT\n")
	return b.String()
}

func writeJumps(b *strings.Builder, table string, existing saved) {
	for _, j := range jumps {
		if j.Table != table {
			continue
		}
		// Looked up by its target, for iptables-save may order and quote the
		// rest its own way.
		targets := existing.targets[table+" "+j.Chain]
		at := slices.Index(targets, j.To)
		if table != "filter" {
			if at < 0 {
				b.WriteString(j.Append() + "\n")
			}
			continue
		}
		behind := 0 // the proxy's
		for i, target := range targets {
			if strings.HasPrefix(target, "KUBE-") {
				behind = i + 1
			}
		}
		if at >= behind {
			continue
		}
		if at >= 0 {
			// The proxy came while this was being written.
			fmt.Fprintf(b, "-D %s %d\n", j.Chain, at+1)
			behind--
		}
		b.WriteString(j.InsertAt(behind+1) + "\n")
	}
}

// saved is what iptables-save shows of chains.
type saved struct {
	// chains that there are, as "TABLE CHAIN".
	chains map[string]bool
	// targets of the rules of each chain, by "TABLE CHAIN" and in order; ""
	// for a rule without.
	targets map[string][]string
}

func parseSave(text string) saved {
	have := saved{chains: map[string]bool{}, targets: map[string][]string{}}
	for chain, words := range iptables.Lines(text) {
		if words == nil {
			have.chains[chain] = true
			continue
		}
		have.targets[chain] = append(have.targets[chain], hostchange.JumpTarget(words))
	}
	return have
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return "4"
	}
	return "6"
}

// setupSysctls sets what pods need, below /proc/sys.
func (n *Network) setupSysctls() error {
	want := map[string]string{}
	for _, cidr := range n.cidrs {
		if cidr.Addr().Is4() {
			want["net/ipv4/ip_forward"] = "1"
			want["net/bridge/bridge-nf-call-iptables"] = "1"
			// Host ports on 127.0.0.1 leave for the bridge with that source.
			want["net/ipv4/conf/"+n.cfg.Bridge+"/route_localnet"] = "1"
			// Where services are routed to the bridge the kernel would tell pods
			// of a better way, which there is none, and then owe them the answer
			// that nobody is there: both count against one limit. Other links
			// still do, if their own parameter says so.
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
			// Not every kernel has the module built in.
			_ = exec.Command("modprobe", "br_netfilter").Run()
			if err := n.sysctl(name, value); err != nil {
				n.log.Warn("the kernel has no br_netfilter: Services do not work between pods of one node", "sysctl", name)
			}
		default:
			return fmt.Errorf("setting sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
		}
	}
	return nil
}

// sysctl sets a kernel parameter, having recorded what it was.
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
	// The bridge's own go with it.
	if !strings.Contains(name, "/"+n.cfg.Bridge+"/") {
		if err := n.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Sysctl, Name: name, Before: old}); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(value), 0o644)
}
