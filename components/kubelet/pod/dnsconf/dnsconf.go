// Package dnsconf generates the resolver configuration and the hosts file of pods.
package dnsconf

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNameservers, maxSearches and maxSearchChars limit a pod's resolver configuration, as the Kubernetes
// documentation specifies: the number of name servers and search domains, and the length of the search line. What
// exceeds them is omitted.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// Node is the DNS configuration of the node and the cluster, from which those of pods are computed.
type Node struct {
	// ClusterDNS are the IP addresses of the cluster's DNS service.
	ClusterDNS []string
	// ClusterDomain is the cluster's domain, usually "cluster.local".
	ClusterDomain string
	// ResolvConf is the path of the node's resolv.conf. If it is empty, pods that inherit the
	// node's configuration get a name server on their own loopback address, the default of
	// resolvers without configuration.
	ResolvConf string
	// Addresses returns the node's IP addresses, whose families select the loopback addresses. It
	// may be nil.
	Addresses func() []string
	// Warn is called with warnings about the node. It may be nil.
	Warn func(reason, message string)
}

// For returns a pod's resolver configuration according to its dnsPolicy and dnsConfig. warn is called with
// the reason and message of an event about what exceeds limits and is omitted, or about a missing cluster
// DNS; it may be nil. It returns an error if the node's resolv.conf cannot be read.
func (n Node) For(pod *v1.Pod, warn func(reason, message string)) (*runtimeapi.DNSConfig, error) {
	host, err := n.host()
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.DNSConfig{}
	cluster := false
	switch pod.Spec.DNSPolicy {
	case v1.DNSNone:
	case v1.DNSDefault:
		out = n.inherited(host)
	case v1.DNSClusterFirstWithHostNet:
		cluster = true
	default:
		cluster = !pod.Spec.HostNetwork
		if !cluster {
			out = n.inherited(host)
		}
	}
	if cluster {
		if len(n.ClusterDNS) == 0 {
			n.warnMissing(pod, warn)
			out = n.inherited(host)
		} else {
			out.Servers = slices.Clone(n.ClusterDNS)
			if n.ClusterDomain != "" {
				out.Searches = append(out.Searches, pod.Namespace+".svc."+n.ClusterDomain, "svc."+n.ClusterDomain, n.ClusterDomain)
			}
			out.Searches = append(out.Searches, host.Searches...)
			out.Options = []string{"ndots:5"}
		}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		out.Servers = append(out.Servers, c.Nameservers...)
		out.Searches = append(out.Searches, c.Searches...)
		for _, o := range c.Options {
			out.Options = setOption(out.Options, o)
		}
	}
	out.Servers = unique(out.Servers)
	out.Searches = unique(out.Searches)
	fit(out, warn)
	return out, nil
}

// warnMissing emits the event that no cluster DNS is configured, for the pod by calling warn, and for the node.
func (n Node) warnMissing(pod *v1.Pod, warn func(reason, message string)) {
	const reason = "MissingClusterDNS"
	message := fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.", v1.DNSClusterFirst, v1.DNSDefault)
	if n.Warn != nil {
		n.Warn(reason, message)
	}
	if warn != nil {
		warn(reason, fmt.Sprintf("pod: %q. %s", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), message))
	}
}

// inherited returns the configuration of pods that inherit that of the node: host, the content of the node's
// resolv.conf. If the kubelet is configured without a resolv.conf, it consists of loopback addresses of the
// node's IP families.
func (n Node) inherited(host *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	if n.ResolvConf != "" {
		return host
	}
	out := &runtimeapi.DNSConfig{Searches: []string{"."}}
	if n.Addresses != nil {
		for _, s := range n.Addresses() {
			loopback := "127.0.0.1"
			if ip, err := netip.ParseAddr(s); err == nil && ip.Is6() {
				loopback = "::1"
			}
			out.Servers = append(out.Servers, loopback)
		}
	}
	if len(out.Servers) == 0 {
		out.Servers = []string{"127.0.0.1"}
	}
	return out
}

// setOption adds an option to a list of options, or replaces the one of the same name.
func setOption(list []string, o v1.PodDNSConfigOption) []string {
	text := o.Name
	if o.Value != nil && *o.Value != "" {
		text += ":" + *o.Value
	}
	for i := range list {
		if name, _, _ := strings.Cut(list[i], ":"); name == o.Name {
			list[i] = text
			return list
		}
	}
	return append(list, text)
}

// unique returns the list without duplicates and empty strings.
func unique(list []string) []string {
	seen := map[string]bool{}
	out := list[:0:0]
	for _, s := range list {
		if s != "" && !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// fit removes name servers and search domains that exceed the limits from c, and calls warn, which may be
// nil, if there are any.
func fit(c *runtimeapi.DNSConfig, warn func(reason, message string)) {
	if len(c.Servers) > maxNameservers {
		c.Servers = c.Servers[:maxNameservers]
		if warn != nil {
			warn("DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+strings.Join(c.Servers, " "))
		}
	}
	full := len(c.Searches)
	if len(c.Searches) > maxSearches {
		c.Searches = c.Searches[:maxSearches]
	}
	// Some resolver libraries abort the process if a name is too long.
	c.Searches = slices.DeleteFunc(c.Searches, func(s string) bool { return len(s) > maxName })
	for len(strings.Join(c.Searches, " ")) > maxSearchChars {
		c.Searches = c.Searches[:len(c.Searches)-1]
	}
	if len(c.Searches) < full && warn != nil {
		warn("DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+strings.Join(c.Searches, " "))
	}
}

// maxName is the maximum length of a search domain.
const maxName = 253

// Check validates the search domains of the node's resolv.conf, to which those of the cluster are added. It
// returns a warning for the operator, such as that the file cannot be read, or "" if there is no problem.
func (n Node) Check() string {
	if n.ResolvConf == "" {
		return ""
	}
	raw, err := os.ReadFile(n.ResolvConf)
	if err != nil {
		return err.Error()
	}
	searches := Parse(raw).Searches
	most := maxSearches
	if n.ClusterDomain != "" {
		most -= 3
	}
	switch {
	case len(searches) > most:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", n.ResolvConf, most)
	case slices.ContainsFunc(searches, func(s string) bool { return len(s) > maxName }):
		return fmt.Sprintf("Resolv.conf file %q contains a search path which length is more than allowed %d chars!", n.ResolvConf, maxName)
	case len(strings.Join(searches, " ")) > maxSearchChars:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!", n.ResolvConf, maxSearchChars)
	}
	return ""
}

// host returns the content of the node's resolv.conf. It is empty if ResolvConf is not set or the file does
// not exist.
func (n Node) host() (*runtimeapi.DNSConfig, error) {
	if n.ResolvConf == "" {
		return &runtimeapi.DNSConfig{}, nil
	}
	raw, err := os.ReadFile(n.ResolvConf)
	if os.IsNotExist(err) {
		return &runtimeapi.DNSConfig{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading resolver configuration: %w", err)
	}
	return Parse(raw), nil
}

// Parse parses a resolv.conf file. Comments and unknown lines are ignored. Only the last search or domain line
// counts.
func Parse(raw []byte) *runtimeapi.DNSConfig {
	out := &runtimeapi.DNSConfig{}
	scan := bufio.NewScanner(bytes.NewReader(raw))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line, _, _ := strings.Cut(scan.Text(), "#")
		line, _, _ = strings.Cut(line, ";")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) >= 2 {
				out.Servers = append(out.Servers, fields[1])
			}
		case "search", "domain":
			// The last line takes precedence.
			out.Searches = nil
			for _, s := range fields[1:] {
				// The root domain is always searched.
				if s != "." {
					out.Searches = append(out.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range fields[1:] {
				name, value, _ := strings.Cut(o, ":")
				out.Options = setOption(out.Options, v1.PodDNSConfigOption{Name: name, Value: &value})
			}
		}
	}
	return out
}

// usual is the resolver configuration of the node. resolved is the one that systemd-resolved maintains if the other contains
// only its stub resolver.
const usual, resolved = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"

// UpstreamFiles returns the files that determine the result of Upstream and its content.
func UpstreamFiles() []string { return []string{usual, resolved} }

// Upstream returns the path of the resolver configuration of the node that pods can use: /etc/resolv.conf or,
// if that contains only stub resolvers on loopback, which pods cannot reach, the file of systemd-resolved.
func Upstream() string { return UpstreamIn(os.DirFS("/")) }

// UpstreamIn is like Upstream for a machine with the root file system files.
func UpstreamIn(files fs.FS) string {
	raw, err := fs.ReadFile(files, usual[1:])
	if err != nil {
		return usual
	}
	for _, s := range Parse(raw).Servers {
		if ip, err := netip.ParseAddr(s); err != nil || !ip.IsLoopback() {
			return usual
		}
	}
	if _, err := fs.Stat(files, resolved[1:]); err == nil {
		return resolved
	}
	return usual
}

// File formats a resolver configuration as resolv.conf.
func File(c *runtimeapi.DNSConfig) []byte {
	var b strings.Builder
	if len(c.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.Searches, " "))
	}
	for _, s := range c.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(c.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.Options, " "))
	}
	return []byte(b.String())
}

// Hostname returns a pod's host name, and the domain that makes it fully qualified. The domain is empty for a
// pod without a subdomain or with hostnameOverride. It returns an error if no valid name can be derived from
// the pod's name.
func Hostname(pod *v1.Pod, clusterDomain string) (host, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil && *o != "" {
		return *o, "", nil
	}
	host = pod.Name
	if pod.Spec.Hostname != "" {
		host = pod.Spec.Hostname
	} else if len(host) > 63 {
		host = strings.TrimRight(host[:63], "-.")
		if host == "" {
			return "", "", fmt.Errorf("hostname for pod %q was invalid: %q", pod.Name, pod.Name)
		}
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return host, domain, nil
}

// hostsHeader is the beginning of the first line of a pod's hosts file, as in upstream.
const hostsHeader = "# Kubernetes-managed hosts file"

// Hosts returns the content of a pod's /etc/hosts. ips are the pod's addresses, which may be empty, and host
// and domain are those of Hostname. With the host network, the content begins with that of the node's hosts
// file at the path nodeHosts.
func Hosts(pod *v1.Pod, ips []string, host, domain, nodeHosts string) ([]byte, error) {
	var b bytes.Buffer
	if pod.Spec.HostNetwork {
		raw, err := os.ReadFile(nodeHosts)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("reading hosts file: %w", err)
		}
		b.WriteString(hostsHeader + " (host network).\n")
		b.Write(raw)
	} else {
		b.WriteString(hostsHeader + ".\n")
		b.WriteString("127.0.0.1\tlocalhost\n")
		b.WriteString("::1\tlocalhost ip6-localhost ip6-loopback\n")
		b.WriteString("fe00::0\tip6-localnet\n")
		b.WriteString("fe00::0\tip6-mcastprefix\n")
		b.WriteString("fe00::1\tip6-allnodes\n")
		b.WriteString("fe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			if domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return b.Bytes(), nil
}
