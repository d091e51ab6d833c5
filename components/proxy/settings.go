package proxy

import (
	"fmt"
	"net/netip"
	"os"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/hostjournal"
)

// rulesConfig returns the settings of the rules of one IP family.
func (p *Proxy) rulesConfig(ipv6 bool, facts nodeFacts) rules.Config {
	cfg := rules.Config{
		IPv6: ipv6, Pods: p.podTraffic(ipv6, facts), MasqueradeAll: p.cfg.MasqueradeAll, LocalhostNodePorts: p.localhostNodePorts(),
		MasqueradeMark: p.cfg.MasqueradeMark, Liberal: p.liberal, NodePortRanges: p.nodePortRanges(ipv6, facts),
	}
	if nodeAddr, ok := facts.addresses[ipv6]; ok {
		cfg.NodeIPs = []netip.Addr{nodeAddr}
	}
	return cfg
}

// nodePortRanges returns the ranges of one IP family that contain the addresses on which node ports
// answer. Nil means all addresses.
func (p *Proxy) nodePortRanges(ipv6 bool, facts nodeFacts) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range p.cfg.NodePortRanges {
		if r.Addr().Is6() == ipv6 {
			out = append(out, r)
		}
	}
	if containsAll(out) {
		return nil
	}
	if nodeAddr, ok := facts.addresses[ipv6]; ok && p.cfg.NodePortsOnPrimary {
		out = append(out, netip.PrefixFrom(nodeAddr, nodeAddr.BitLen()))
	}
	return out
}

// podTraffic returns the match for traffic of this node's pods, as DetectLocalMode defines it: by
// the pod CIDRs of this node or of the cluster, or by network interface. It is empty if no pod CIDR
// of the IP family is known.
func (p *Proxy) podTraffic(ipv6 bool, facts nodeFacts) rules.Source {
	switch p.cfg.DetectLocalMode {
	case LocalByNodeCIDR:
		if r, ok := facts.podCIDRs[ipv6]; ok {
			return rules.FromRange(r)
		}
	case LocalByBridge:
		return rules.FromInterface(p.cfg.PodLink)
	case LocalByLinkPrefix:
		return rules.FromInterface(p.cfg.PodLink + "+")
	default:
		for _, r := range p.cfg.PodCIDRs {
			if r.Addr().Is6() == ipv6 {
				return rules.FromRange(r)
			}
		}
	}
	return rules.Source{}
}

// localhostNodePorts reports whether node ports answer on 127.0.0.1: the setting
// LocalhostNodePorts, unless there are IPv4 ranges for node ports that exclude loopback addresses.
func (p *Proxy) localhostNodePorts() bool {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 0})
	some := p.cfg.NodePortsOnPrimary
	for _, r := range p.cfg.NodePortRanges {
		if r.Addr().Is4() && (r.Contains(loopback) || r.Addr().IsLoopback()) {
			return p.cfg.LocalhostNodePorts
		}
		some = some || r.Addr().Is4()
	}
	return p.cfg.LocalhostNodePorts && !some
}

// readLiberal reports whether the kernel's conntrack accepts TCP packets outside the window
// (nf_conntrack_tcp_be_liberal).
func readLiberal() bool {
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && len(data) > 0 && data[0] != '0'
}

// routeLocalnet sets the kernel parameter route_localnet, so that packets from 127.0.0.1 to a node
// port can be forwarded to pods. It records the previous value in the journal.
func (p *Proxy) routeLocalnet() error {
	const name = "net/ipv4/conf/all/route_localnet"
	path := "/proc/sys/" + name
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading kernel parameter %s: %w", name, err)
	}
	if len(before) > 0 && before[0] == '1' {
		return nil
	}
	if err := p.cfg.Journal.Record(hostjournal.Change{Kind: hostjournal.Sysctl, Name: name, Before: string(before[:1])}); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("setting kernel parameter %s: %w", name, err)
	}
	return nil
}

// applyConntrackSettings sets the kernel parameters of conntrack. It requires that the conntrack
// module is loaded.
func (p *Proxy) applyConntrackSettings() error {
	return setConntrackParams(conntrackParams(p.cfg.Conntrack, cpus()), p.cfg.Journal, p.cfg.Log)
}
