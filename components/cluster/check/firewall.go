package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/layout"
)

// firewallChecks returns the checks of connections from pods.
func firewallChecks() []check { return []check{{"firewall", checkFirewall}} }

// Target is a server to which pods must be able to connect.
type Target struct {
	// Name describes the server to the user.
	Name    string
	Address netip.AddrPort
	// Query is a name to resolve with the DNS server at the address, over UDP. If it is empty, a TCP connection is opened.
	Query string
}

// Connection is the result of a connection to a Target, from the machine and from a pod.
type Connection struct{ FromHost, FromPod error }

// checkFirewall connects to servers like a pod. It reports those that the machine itself reaches and pods do not.
func checkFirewall(ctx context.Context, m *Machine, o *outcome) {
	if !m.Cluster.running() || m.Network.link(m.Layout.Bridge()) == nil {
		o.skip("the cluster does not run, or there is no pod bridge")
		return
	}
	targets := m.targets(ctx)
	results, err := m.Probes.Connect(ctx, targets)
	if err != nil {
		o.warnf("repeat the command; if that does not help, see `ip link show "+m.Layout.Bridge()+"`", "the connections of pods could not be tested: %v", err)
		return
	}
	for i, r := range results {
		if r.FromHost != nil || r.FromPod == nil {
			continue
		}
		verb := "drops"
		if errors.Is(r.FromPod, unix.ECONNREFUSED) || errors.Is(r.FromPod, unix.EHOSTUNREACH) || errors.Is(r.FromPod, unix.ENETUNREACH) || errors.Is(r.FromPod, unix.EACCES) {
			verb = "rejects"
		}
		o.errorf(m.admitPods(), "a firewall %s packets from pods to %s (%s), which this machine itself reaches: %v", verb, targets[i].Name, targets[i].Address, r.FromPod)
	}
}

// targets returns the servers to which every pod must be able to connect.
func (m *Machine) targets(ctx context.Context) []Target {
	var targets []Target
	status, err := m.Probes.API(ctx)
	if service, parseErr := netip.ParseAddr(status.Service); err == nil && parseErr == nil {
		targets = append(targets, Target{Name: "the API server through its Service", Address: netip.AddrPortFrom(service, 443)})
	}
	for _, address := range m.Network.Addresses {
		if bridge := m.Network.link(m.Layout.Bridge()); hasFamily(bridge, address) {
			targets = append(targets, Target{Name: "the kubelet of this node", Address: netip.AddrPortFrom(address, layout.PortKubelet)})
		}
	}
	if dns, err := netip.ParseAddr(status.DNS); err == nil {
		targets = append(targets, Target{Name: "cluster DNS", Address: netip.AddrPortFrom(dns, 53), Query: kubernetesName(m)})
	}
	_, servers := upstream(m)
	for _, s := range servers {
		if ip, err := netip.ParseAddr(s); err == nil && !ip.IsLoopback() && len(m.Network.defaultLinks()) > 0 && hasFamily(m.Network.link(m.Layout.Bridge()), ip) {
			targets = append(targets, Target{Name: "other networks, here the name server", Address: netip.AddrPortFrom(ip, 53), Query: "."})
			break
		}
	}
	return targets
}

// hasFamily reports whether the bridge has an address of the same family as address, so that pods have one as well.
func hasFamily(bridge *Link, address netip.Addr) bool {
	for _, p := range bridge.Prefixes {
		if p.Addr().Is4() == address.Is4() && !p.Addr().IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}

// admitPods returns how to make the firewall of this machine accept packets from pods.
func (m *Machine) admitPods() string {
	cidr := strings.Join(m.Cluster.Config.PodCIDRs, " and ")
	if cidr == "" {
		cidr = "the pod range"
	}
	first, _, _ := strings.Cut(cidr, " ")
	switch {
	case len(m.processes("firewalld")["firewalld"]) > 0:
		return fmt.Sprintf("run `firewall-cmd --permanent --zone=trusted --add-source=%s` and `firewall-cmd --reload`", first)
	case strings.Contains(m.read("/etc/ufw/ufw.conf"), "ENABLED=yes"):
		return fmt.Sprintf("run `ufw allow from %s` and `ufw route allow from %s`", first, first)
	}
	return "find the rule with `nft list ruleset` (a chain with the hook forward or input that drops or rejects packets), and accept packets from " + cidr + " before it"
}
