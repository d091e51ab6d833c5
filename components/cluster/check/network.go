package check

import (
	"context"
	"fmt"
	"net/netip"
)

// networkChecks returns the checks of links, routes and address ranges.
func networkChecks() []check {
	return []check{{"default-route", checkDefaultRoute}, {"mtu", checkMTU}, {"address-ranges", checkRanges}}
}

// checkDefaultRoute checks that pods reach other networks.
func checkDefaultRoute(_ context.Context, m *Machine, o *outcome) {
	if err := m.Network.Err; err != nil {
		o.errorf("if this is a container, start it with `--privileged`", "the network of the machine cannot be read: %v", err)
		return
	}
	switch {
	case len(m.Network.Addresses) == 0:
		o.warnf("configure the network, or set an address with `ip address add`", "the machine has no address that other machines can reach, so the node gets the address of its pod bridge")
	case len(m.Network.defaultLinks()) == 0:
		o.warnf("add a route with `ip route add default via GATEWAY`", "the machine has no default route, so pods do not reach other networks")
	}
}

// tunnelOverhead is the number of bytes that VXLAN over IPv4 adds to a packet.
const tunnelOverhead = 50

// checkMTU checks that packets of pods fit into the links through which they leave the machine. The MTU of the pod
// bridge is set when it is created, and does not follow later changes of other links.
func checkMTU(_ context.Context, m *Machine, o *outcome) {
	bridge := m.Network.link(m.Layout.Bridge())
	if bridge == nil {
		o.skip("there is no pod bridge")
		return
	}
	for _, out := range m.Network.defaultLinks() {
		if out.MTU > 0 && bridge.MTU > out.MTU {
			o.errorf(fmt.Sprintf("run `ip link set %s mtu %d`, then restart the pods, or run `hyperkube down` and `%s`", bridge.Name, out.MTU, m.Cluster.Start),
				"pods send packets of up to %d bytes, but %s, the link with the default route, transmits only %d, so large transfers hang", bridge.MTU, out.Name, out.MTU)
		}
		if tunnel := m.Network.link(m.Layout.Tunnel()); tunnel != nil && tunnel.MTU > out.MTU-tunnelOverhead {
			o.errorf(fmt.Sprintf("run `ip link set %s mtu %d`, then restart the pods", tunnel.Name, out.MTU-tunnelOverhead),
				"the tunnel %s to other nodes sends packets of up to %d bytes, which do not fit into those of %s (%d bytes)", tunnel.Name, tunnel.MTU, out.Name, out.MTU)
		}
	}
}

// checkRanges checks that no route of the machine, for example of a VPN, overlaps with the address ranges of the cluster.
func checkRanges(_ context.Context, m *Machine, o *outcome) {
	if len(m.Cluster.Config.PodCIDRs) == 0 {
		o.skip("the machine has no cluster that determines address ranges")
		return
	}
	for _, r := range []struct {
		what  string
		cidrs []string
	}{{"pods", m.Cluster.Config.PodCIDRs}, {"Services", m.Cluster.Config.ServiceCIDRs}} {
		for _, cidr := range r.cidrs {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue
			}
			for _, route := range m.Network.Routes {
				if route.Dst.IsValid() && route.Dst.Overlaps(prefix) && !m.ownLink(route.Link) {
					o.errorf(fmt.Sprintf("disconnect the network of %s, or create a new cluster with other ranges: `hyperkube reset`, then `hyperkube up --cluster-cidr CIDR --service-cidr CIDR`", route.Link),
						"the route to %s through %s overlaps with the range %s of %s, so connections to them leave through the wrong link", route.Dst, route.Link, cidr, r.what)
				}
			}
		}
	}
}
