package check

import (
	"cmp"
	"context"
	"io/fs"
	"net/netip"
	"strings"

	"hyperkube/components/kubelet/pod/dnsconf"
)

// dnsChecks returns the checks of name resolution.
func dnsChecks() []check {
	return []check{{"dns-servers", checkServers}, {"dns-loop", checkLoop}, {"dns-upstream", checkUpstream}, {"dns-cluster", checkClusterDNS}}
}

// upstream returns the path of the machine's resolver configuration that cluster DNS uses, and its name servers.
func upstream(m *Machine) (path string, servers []string) {
	path = dnsconf.UpstreamIn(m.Files)
	data, err := fs.ReadFile(m.Files, rel(path))
	if err != nil {
		return path, nil
	}
	return path, dnsconf.Parse(data).Servers
}

// resolverFix returns the fix for a resolver configuration that pods cannot use.
func (m *Machine) resolverFix() string {
	const other = "write `nameserver ADDRESS` with a name server of your network to another file and set `resolvConf` to it in the KubeletConfiguration"
	if m.hasOpenRC() {
		return other
	}
	return "start the resolver with `systemctl enable --now systemd-resolved`, or " + other
}

// checkServers checks that there is a name server that pods can reach. Loopback addresses of the machine belong to the
// pod itself there.
func checkServers(_ context.Context, m *Machine, o *outcome) {
	path, servers := upstream(m)
	if len(servers) == 0 {
		o.warnf(m.resolverFix(), "%s contains no name server, so pods do not resolve names outside of the cluster", path)
		return
	}
	for _, s := range servers {
		if ip, err := netip.ParseAddr(s); err != nil || !ip.IsLoopback() {
			return
		}
	}
	o.errorf(m.resolverFix(), "%s contains only the name server %s, which pods cannot reach, so they do not resolve names outside of the cluster", path, strings.Join(servers, ", "))
}

// checkLoop checks that cluster DNS does not forward queries to itself.
func checkLoop(_ context.Context, m *Machine, o *outcome) {
	path, servers := upstream(m)
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		inRange := false
		for _, cidr := range m.Cluster.Config.ServiceCIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			inRange = inRange || err == nil && prefix.Contains(ip)
		}
		if inRange || s == m.Cluster.Config.DNSAddress {
			o.errorf("replace it in "+path+" by a name server of your network", "%s contains %s, the address of a Service of the cluster, so cluster DNS forwards queries to itself until it refuses them", path, s)
		}
	}
}

// checkUpstream checks that a name server of the machine answers. One is enough. It does not apply to a machine
// without a default route or name server.
func checkUpstream(ctx context.Context, m *Machine, o *outcome) {
	_, servers := upstream(m)
	if len(m.Network.defaultLinks()) == 0 || len(servers) == 0 {
		o.skip("the machine has no connection to other networks or no name server")
		return
	}
	var last error
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		if last = m.Probes.Resolve(ctx, netip.AddrPortFrom(ip, 53), "."); last == nil {
			return
		}
	}
	if last != nil {
		o.warnf("check the network, and the name servers with `nslookup example.com "+servers[0]+"`", "no name server of the machine (%s) answers, so pods do not resolve names outside of the cluster: %v", strings.Join(servers, ", "), last)
	}
}

// checkClusterDNS checks that cluster DNS answers a query of this machine.
func checkClusterDNS(ctx context.Context, m *Machine, o *outcome) {
	if !m.Cluster.running() {
		o.skip("the cluster does not run")
		return
	}
	status, err := m.Probes.API(ctx)
	server, parseErr := netip.ParseAddr(status.DNS)
	if err != nil || parseErr != nil {
		o.skip("the API server does not answer, or the built-in DNS is disabled")
		return
	}
	if err := m.Probes.Resolve(ctx, netip.AddrPortFrom(server, 53), kubernetesName(m)); err != nil {
		o.errorf("see why with `hyperkube kubectl -n kube-system describe pods -l k8s-app=kube-dns`; if no pod is ready, `hyperkube kubectl -n kube-system logs -l k8s-app=kube-dns` prints its errors",
			"cluster DNS does not answer at %s, so pods do not resolve names of Services: %v", server, err)
	}
}

// kubernetesName returns the DNS name of the Service of the API server.
func kubernetesName(m *Machine) string {
	return "kubernetes.default.svc." + cmp.Or(m.Cluster.Config.Domain, "cluster.local") + "."
}
