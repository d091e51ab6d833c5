package up

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/controllers"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/internal/host/netlinkutil"
)

// newPool returns the pool of --load-balancer-pool, which is empty without the flag. It returns an error if the pool
// contains addresses of pods, of Services, of this machine, or of its additional nodes.
func newPool(texts []string, id clusterconfig.Cluster, additional additionalNodes) (addresspool.Pool, error) {
	if len(texts) == 0 {
		return addresspool.Pool{}, nil
	}
	var pods, services []netip.Prefix
	for from, to := range map[*[]string]*[]netip.Prefix{&id.PodCIDRs: &pods, &id.ServiceCIDRs: &services} {
		for _, text := range *from {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return addresspool.Pool{}, fmt.Errorf("parsing CIDR %s of the cluster: %w", text, err)
			}
			*to = append(*to, prefix)
		}
	}
	pool, err := controllers.LoadBalancerPool(texts, pods, services)
	if err != nil {
		return pool, err
	}
	machine, err := netlinkutil.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return pool, fmt.Errorf("listing the addresses of the machine: %w", err)
	}
	for _, one := range machine {
		a := netlinkutil.Prefix(one.IPNet).Addr()
		if err := pool.CheckDisjoint("an address of this machine", netip.PrefixFrom(a, a.BitLen())); err != nil {
			return pool, err
		}
	}
	return pool, checkAdditional(pool, id, additional)
}

// checkAdditional returns an error if the pool contains an address of the bridge between additional nodes, or of one of
// these nodes.
func checkAdditional(pool addresspool.Pool, id clusterconfig.Cluster, additional additionalNodes) error {
	if additional.Count < 2 {
		return nil
	}
	subnet, err := netip.ParsePrefix(additional.Subnet)
	if err != nil {
		return fmt.Errorf("parsing the subnet of the additional nodes: %w", err)
	}
	second, err := subnet6(subnet, id.PodCIDRs)
	if err != nil {
		return err
	}
	for _, s := range []netip.Prefix{subnet, second} {
		if !s.IsValid() {
			continue
		}
		a := s.Masked().Addr()
		for range additional.Count { // the bridge, and each node after the first
			a = a.Next()
			if err := pool.CheckDisjoint("an address of a node of this machine", netip.PrefixFrom(a, a.BitLen())); err != nil {
				return err
			}
		}
	}
	return nil
}
