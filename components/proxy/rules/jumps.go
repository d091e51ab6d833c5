package rules

import (
	"maps"
	"slices"

	"hyperkube/internal/host/packetfilter"
)

// jumps are the jumps from the built-in chains to the proxy's chains, in order: packets outside the
// loadBalancerSourceRanges are dropped before KUBE-FORWARD accepts packets marked for masquerading.
var jumps = []packetfilter.Jump{
	jump(packetfilter.Filter, "INPUT", "KUBE-FIREWALL", "kubernetes firewall", 0),
	jump(packetfilter.Filter, "INPUT", "KUBE-PROXY-FIREWALL", balancerFirewall, packetfilter.New),
	jump(packetfilter.Filter, "INPUT", "KUBE-NODEPORTS", "kubernetes health check service ports", 0),
	jump(packetfilter.Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", externalPortals, packetfilter.New),
	jump(packetfilter.Filter, "FORWARD", "KUBE-PROXY-FIREWALL", balancerFirewall, packetfilter.New),
	jump(packetfilter.Filter, "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules", 0),
	jump(packetfilter.Filter, "FORWARD", "KUBE-SERVICES", portals, packetfilter.New),
	jump(packetfilter.Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", externalPortals, packetfilter.New),
	jump(packetfilter.Filter, "OUTPUT", "KUBE-FIREWALL", "kubernetes firewall", 0),
	jump(packetfilter.Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", balancerFirewall, packetfilter.New),
	jump(packetfilter.Filter, "OUTPUT", "KUBE-SERVICES", portals, packetfilter.New),
	jump(packetfilter.NAT, "OUTPUT", "KUBE-SERVICES", portals, 0),
	jump(packetfilter.NAT, "PREROUTING", "KUBE-SERVICES", portals, 0),
	jump(packetfilter.NAT, "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules", 0),
}

// portals and the other constants are the comments of several jumps, with upstream's text.
const (
	portals          = "kubernetes service portals"
	externalPortals  = "kubernetes externally-visible service portals"
	balancerFirewall = "kubernetes load balancer firewall"
)

// jump returns a jump at the beginning of the built-in chain from to the chain to, for packets in
// the given connection states; 0 means all.
func jump(table packetfilter.Table, from, to, comment string, states packetfilter.ConnStates) packetfilter.Jump {
	return packetfilter.Jump{
		From: packetfilter.Chain{Table: table, Name: from}, Place: packetfilter.First,
		Rule: packetfilter.Rule{Comment: comment, Conn: packetfilter.ConnState{States: states}, Target: to},
	}
}

// ServiceChains returns patterns that match the chains of single ports and endpoints, which exist
// only as long as the Service does. Chains that match and are not desired are removed.
func ServiceChains() []packetfilter.Chain {
	var out []packetfilter.Chain
	for _, table := range []packetfilter.Table{packetfilter.Filter, packetfilter.NAT} {
		for _, name := range []string{"KUBE-SVC-*", "KUBE-SVL-*", "KUBE-SEP-*", "KUBE-EXT-*", "KUBE-FW-*"} {
			out = append(out, packetfilter.Chain{Table: table, Name: name})
		}
	}
	return out
}

// Objects returns patterns of the chains and sets of single Services in a mode, and otherMode of the chains and sets that exist
// only in the other mode.
func Objects(mode packetfilter.Mode) (objects, otherMode []packetfilter.Chain) {
	if mode == packetfilter.NFTables {
		// An earlier version had a chain for each Service in both modes.
		return slices.Concat(ServiceChains(), balancerChains(), []packetfilter.Chain{{Table: packetfilter.Sets, Name: "KUBE-*"}}), onlyIPTables()
	}
	return ServiceChains(), setChains()
}

// onlyIPTables returns the chains without Services that exist only in iptables.
func onlyIPTables() []packetfilter.Chain {
	var out []packetfilter.Chain
	inSets := staticSetChains(Config{})
	for chain := range staticChains(Config{}) {
		if _, both := inSets[chain]; !both {
			out = append(out, chain)
		}
	}
	return out
}

// AllChains returns the chains and sets that this proxy or upstream's kube-proxy may have created, in all
// tables: patterns of the chains of single Services, and the chains that exist even without
// Services. It is used for removal.
func AllChains() []packetfilter.Chain {
	out := setChains()
	for _, table := range []packetfilter.Table{packetfilter.Filter, packetfilter.NAT, packetfilter.Mangle} {
		for _, chain := range append(ServiceChains(), slices.Collect(maps.Keys(Build(Config{}, nil).Chains))...) {
			if chain.Table = table; !slices.Contains(out, chain) {
				out = append(out, chain)
			}
		}
	}
	return out
}
