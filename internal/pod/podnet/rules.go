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

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/iptables"
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

// matchLocal matches packets to addresses of the host.
const matchLocal = "-m addrtype --dst-type LOCAL"

// jumps are the rules in built-in chains that jump to the chains of this package. In the table
// filter they are inserted before all rules except those of kube-proxy, which reject and drop
// packets to Services without endpoints. In the other tables they are appended.
var jumps = []iptables.Jump{
	{Table: "nat", Chain: "POSTROUTING", To: chainMasquerade, Comment: "hyperkube pod network"},
	{Table: "nat", Chain: "PREROUTING", To: chainHostPorts, Comment: "hyperkube host ports", Match: matchLocal},
	{Table: "nat", Chain: "OUTPUT", To: chainHostPorts, Comment: "hyperkube host ports", Match: matchLocal},
	{Table: "filter", Chain: "FORWARD", To: chainForward, Comment: "hyperkube pod network"},
	{Table: "filter", Chain: "INPUT", To: chainInput, Comment: "hyperkube services of this host"},
	// The mangle table is evaluated before all rules in the filter table.
	{Table: "mangle", Chain: "FORWARD", To: chainPolicy, Comment: "hyperkube network policies"},
}

var chains = map[string][]string{
	"nat":    {chainMasquerade, chainNoMasq, chainHostPorts, chainHostPortsSN},
	"filter": {chainForward, chainInput},
	"mangle": {chainPolicy, policies},
}

// setupRules writes the rules of each family that has a CIDR, with one call to read the existing
// rules and one to write. The caller holds n.mu.
func (n *Network) setupRules(ctx context.Context) error {
	var changes []hostjournal.Change
	for _, cidr := range n.cidrs {
		family := familyOf(cidr.Addr())
		for _, table := range []string{"filter", "nat", "mangle"} {
			for _, name := range chains[table] {
				changes = append(changes, hostjournal.Change{Kind: hostjournal.Chain, Name: family + " " + table + " " + name})
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

// maxWriteAttempts is the maximum number of checks of the position of jumps. The proxy inserts its jumps
// only once, when it starts.
const maxWriteAttempts = 3

// writeRules writes the rules for the family of the CIDR. The proxy can insert its jumps between
// the read and the write, so the position of the jumps is checked again afterwards.
func (n *Network) writeRules(ctx context.Context, cidr netip.Prefix) error {
	family := iptables.Of(cidr.Addr().Is6())
	for range maxWriteAttempts {
		have, err := iptables.Save(ctx, family)
		if err != nil {
			return err
		}
		rules := n.rules(cidr, have)
		if err := n.guard.Restore(ctx, family, rules); err != nil {
			return fmt.Errorf("writing iptables rules of the pod network: %w", err)
		}
		if !strings.Contains(rules, "\n-I ") {
			break
		}
	}
	return nil
}

// Maintain restores the rules when another program removes them, for example by reloading a firewall,
// until ctx is done. Call it once. It does nothing before Setup has succeeded.
func (n *Network) Maintain(ctx context.Context) {
	n.guard.Maintain(ctx, "the pod network", n.restoreLost)
}

// restoreLost writes the rules of each family with missing rules, and reports whether there was
// one.
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

// rules returns all rules of this package for the family of the CIDR as input for iptables-restore.
// have is the output of iptables-save.
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
	// Firewalls of hosts often only accept known sources. Accept connections from pods to Services
	// on this host, especially the API server. The host's firewall decides about other connections
	// from pods to the host.
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
		// Search by target, because iptables-save can print the other arguments in a different
		// order and with different quotes.
		targets := existing.targets[table+" "+j.Chain]
		at := slices.Index(targets, j.To)
		if table != "filter" {
			if at < 0 {
				b.WriteString(j.Append() + "\n")
			}
			continue
		}
		behind := 0 // index of the proxy's last jump
		for i, target := range targets {
			if strings.HasPrefix(target, "KUBE-") {
				behind = i + 1
			}
		}
		if at >= behind {
			continue
		}
		if at >= 0 {
			// The proxy inserted its jump between the read and the write.
			fmt.Fprintf(b, "-D %s %d\n", j.Chain, at+1)
			behind--
		}
		b.WriteString(j.InsertAt(behind+1) + "\n")
	}
}

// saved is the parsed output of iptables-save.
type saved struct {
	// chains contains the existing chains, as "TABLE CHAIN".
	chains map[string]bool
	// targets contains the jump targets of the rules of each chain, in order, keyed by "TABLE
	// CHAIN". The target is "" for rules without a jump.
	targets map[string][]string
}

func parseSave(text string) saved {
	have := saved{chains: map[string]bool{}, targets: map[string][]string{}}
	for chain, words := range iptables.Lines(text) {
		if words == nil {
			have.chains[chain] = true
			continue
		}
		have.targets[chain] = append(have.targets[chain], hostjournal.JumpTarget(words))
	}
	return have
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return "4"
	}
	return "6"
}

// setupSysctls sets the sysctls that the pod network needs.
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
				n.log.Warn("kernel has no br_netfilter, Services do not work between pods on the same node", "sysctl", name)
			}
		default:
			return fmt.Errorf("setting sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
		}
	}
	return nil
}

// sysctl sets a sysctl after recording its previous value in the journal.
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
