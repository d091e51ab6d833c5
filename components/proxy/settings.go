package proxy

import (
	"fmt"
	"net/netip"
	"os"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/hostchange"
)

func (p *Proxy) rulesConfig(ipv6 bool, facts nodeFacts) rules.Config {
	cfg := rules.Config{
		IPv6: ipv6, Pods: p.podTraffic(ipv6, facts), MasqueradeAll: p.cfg.MasqueradeAll, LocalhostNodePorts: p.localhostNodePorts(),
		MasqueradeMark: p.cfg.MasqueradeMark, Liberal: p.liberal, NodePortRanges: p.nodePortRanges(ipv6, facts),
	}
	if own, ok := facts.addresses[ipv6]; ok {
		cfg.NodeIPs = []netip.Addr{own}
	}
	return cfg
}

// nodePortRanges are those of the node's addresses of a family on which node ports
// answer; none: all.
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
	if own, ok := facts.addresses[ipv6]; ok && p.cfg.NodePortsOnPrimary {
		out = append(out, netip.PrefixFrom(own, own.BitLen()))
	}
	return out
}

// podTraffic is what tells traffic of this node's pods; zero while nothing does.
func (p *Proxy) podTraffic(ipv6 bool, facts nodeFacts) rules.Source {
	switch p.cfg.Local {
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

// localhostNodePorts tells whether node ports answer on 127.0.0.1: not where
// they answer on some addresses only, and that is none of them.
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

// readLiberal asks whether the kernel lets TCP connections go on with packets
// that are out of their window.
func readLiberal() bool {
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && len(data) > 0 && data[0] != '0'
}

// routeLocalnet lets packets to 127.0.0.1 be sent on to pods.
func (p *Proxy) routeLocalnet() error {
	const name = "net/ipv4/conf/all/route_localnet"
	path := "/proc/sys/" + name
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the kernel parameter %s: %w", name, err)
	}
	if len(before) > 0 && before[0] == '1' {
		return nil
	}
	if err := p.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Sysctl, Name: name, Before: string(before[:1])}); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("setting the kernel parameter %s: %w", name, err)
	}
	return nil
}

// boundConnections tells the kernel how many connections to remember, and how long.
func (p *Proxy) boundConnections() error {
	return setBounds(bounds(p.cfg.Conntrack, cpus()), p.cfg.Journal, p.cfg.Log)
}
