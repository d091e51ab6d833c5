package dns

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// specVersion is the implemented version of the Kubernetes DNS specification:
// https://github.com/kubernetes/dns/blob/HEAD/docs/specification.md
const specVersion = "1.1.0"

// source provides the objects from which a zone answers. Objects are shared and must not be
// modified.
type source interface {
	// Service returns a service, or nil if it does not exist.
	Service(namespace, name string) *corev1.Service
	// Slices returns the endpoint slices of a service.
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	// NamespaceExists reports whether a namespace exists.
	NamespaceExists(name string) bool
	// ServicesByIP returns the services with the given cluster IP.
	ServicesByIP(ip string) []*corev1.Service
	// SlicesByIP returns the endpoint slices that contain the given address.
	SlicesByIP(ip string) []*discoveryv1.EndpointSlice
}

// zone answers queries for names of the cluster. It is pure: answers depend only on its source.
type zone struct {
	// domain is the cluster domain, fully qualified and in lower case: "cluster.local.".
	domain string
	ttl    uint32
	source source
}

// reply is the content of an answer. If exists is false, the name does not exist (NXDOMAIN). If
// exists is true and there are no records, the name has no records of the requested type (NODATA).
type reply struct {
	answer, extra []dns.RR
	exists        bool
	// follow is the target of the CNAME record in answer, which the server must resolve as well. It is
	// empty if there is none.
	follow string
}

// covers reports whether name is within the zone.
func (z *zone) covers(name string) bool { return dns.IsSubDomain(z.domain, name) }

// resolve answers a query of the type qtype for a name that the zone covers. The reply does not exist for a
// name that is neither the zone itself nor below svc or pod, except dns-version.
func (z *zone) resolve(name string, qtype uint16) reply {
	lower := strings.ToLower(name)
	labels := dns.SplitDomainName(strings.TrimSuffix(lower, z.domain))
	if len(labels) == 0 {
		return z.apex(name, qtype)
	}
	n := len(labels)
	switch kind := labels[n-1]; {
	case n == 1 && kind == "dns-version":
		if qtype == dns.TypeTXT {
			return reply{exists: true, answer: []dns.RR{&dns.TXT{Hdr: z.header(name, dns.TypeTXT), Txt: []string{specVersion}}}}
		}
		return reply{exists: true}
	case n == 1 && (kind == "svc" || kind == "pod"):
		return reply{exists: true}
	case kind == "svc":
		return z.service(name, qtype, labels[:n-1])
	case kind == "pod":
		return z.pod(name, qtype, labels[:n-1])
	}
	return reply{}
}

func (z *zone) apex(name string, qtype uint16) reply {
	r := reply{exists: true}
	switch qtype {
	case dns.TypeSOA:
		r.answer = []dns.RR{z.soa()}
	case dns.TypeNS:
		r.answer = []dns.RR{&dns.NS{Hdr: z.header(name, dns.TypeNS), Ns: "ns.dns." + z.domain}}
	}
	return r
}

// service answers names of Services, their endpoints and their named ports (SRV names). labels are the labels
// before "svc": the last one is the namespace, the one before it the Service.
func (z *zone) service(name string, qtype uint16, labels []string) reply {
	n := len(labels)
	namespace := labels[n-1]
	if n == 1 {
		return reply{exists: z.source.NamespaceExists(namespace)}
	}
	svc := z.source.Service(namespace, labels[n-2])
	if svc == nil {
		return reply{}
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		if n != 2 {
			return reply{}
		}
		target := dns.Fqdn(svc.Spec.ExternalName)
		r := reply{exists: true, answer: []dns.RR{&dns.CNAME{Hdr: z.header(name, dns.TypeCNAME), Target: target}}}
		if qtype == dns.TypeA || qtype == dns.TypeAAAA {
			r.follow = target
		}
		return r
	}
	switch {
	case n == 2:
		if isHeadless(svc) {
			return z.headless(name, qtype, svc, "", "", "")
		}
		return z.clusterIP(name, qtype, svc, "", "")
	case n == 3:
		// The specification defines endpoint names for headless services only. CoreDNS serves them
		// for all services, and users rely on it.
		return z.headless(name, qtype, svc, labels[0], "", "")
	case n == 4 && strings.HasPrefix(labels[0], "_") && strings.HasPrefix(labels[1], "_"):
		port, protocol := labels[0][1:], labels[1][1:]
		if isHeadless(svc) {
			return z.headless(name, qtype, svc, "", port, protocol)
		}
		return z.clusterIP(name, qtype, svc, port, protocol)
	}
	return reply{}
}

func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == ""
}

func (z *zone) clusterIP(name string, qtype uint16, svc *corev1.Service, port, protocol string) reply {
	r := reply{exists: port == ""}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	if port == "" {
		for _, ip := range ips {
			r.answer = z.appendAddress(r.answer, name, qtype, ip)
		}
	}
	target := svc.Name + "." + svc.Namespace + ".svc." + z.domain
	for _, p := range svc.Spec.Ports {
		if !portMatches(port, protocol, p.Name, string(p.Protocol)) {
			continue
		}
		r.exists = true
		if qtype != dns.TypeSRV {
			continue
		}
		r.answer = append(r.answer, z.srv(name, target, uint16(p.Port)))
	}
	if qtype == dns.TypeSRV && len(r.answer) > 0 {
		for _, ip := range ips {
			r.extra = z.appendAddress(r.extra, target, dns.TypeANY, ip)
		}
	}
	return r
}

// headless answers from the endpoints of a service. A non-empty host selects the endpoints with
// that host name; port and protocol select ports for SRV. If no endpoint is ready, the name does
// not exist, including the name of the service.
func (z *zone) headless(name string, qtype uint16, svc *corev1.Service, host, port, protocol string) reply {
	var r reply
	seen := map[string]bool{}
	base := svc.Name + "." + svc.Namespace + ".svc." + z.domain
	for _, slice := range z.source.Slices(svc.Namespace, svc.Name) {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if !published(svc, endpoint) {
				continue
			}
			for _, ip := range endpoint.Addresses {
				label := endpointName(endpoint, ip)
				if host != "" && host != label {
					continue
				}
				if port == "" {
					r.exists = true
				}
				if qtype != dns.TypeSRV {
					if port == "" && !seen[ip] {
						seen[ip] = true
						r.answer = z.appendAddress(r.answer, name, qtype, ip)
					}
					if port == "" {
						continue
					}
				}
				target := label + "." + base
				for _, p := range slice.Ports {
					if p.Port == nil || !portMatches(port, protocol, ptr.Deref(p.Name, ""), string(ptr.Deref(p.Protocol, ""))) {
						continue
					}
					r.exists = true
					key := fmt.Sprint(target, *p.Port)
					if qtype != dns.TypeSRV || seen[key] {
						continue
					}
					seen[key] = true
					r.answer = append(r.answer, z.srv(name, target, uint16(*p.Port)))
					if !seen[ip] {
						seen[ip] = true
						r.extra = z.appendAddress(r.extra, target, dns.TypeANY, ip)
					}
				}
			}
		}
	}
	return r
}

// published reports whether an endpoint of the Service svc has DNS names: it is ready, or svc
// publishes endpoints that are not ready.
func published(svc *corev1.Service, e *discoveryv1.Endpoint) bool {
	return svc.Spec.PublishNotReadyAddresses || e.Conditions.Ready == nil || *e.Conditions.Ready
}

// portMatches reports whether a port of a Service with this name and proto matches the port and
// protocol of a query. An empty port in the query matches all ports.
func portMatches(port, protocol, name, proto string) bool {
	return port == "" || strings.EqualFold(port, name) && strings.EqualFold(protocol, proto)
}

// endpointName returns the DNS label of an endpoint's address ip below its Service: the host name
// of the endpoint or, if it has none, the address with dashes.
func endpointName(e *discoveryv1.Endpoint, ip string) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return strings.ToLower(*e.Hostname)
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip)
}

// pod answers names such as 10-244-0-5.default.pod.cluster.local with the address that the name
// contains. labels are the labels before "pod". The namespace must exist, but it is not checked
// that such a pod exists.
func (z *zone) pod(name string, qtype uint16, labels []string) reply {
	n := len(labels)
	exists := z.source.NamespaceExists(labels[n-1])
	if n == 1 || !exists {
		return reply{exists: exists && n == 1}
	}
	if n != 2 {
		return reply{}
	}
	ip, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", "."))
	if err != nil {
		ip, err = netip.ParseAddr(strings.ReplaceAll(labels[0], "-", ":"))
	}
	if err != nil {
		return reply{}
	}
	return reply{exists: true, answer: z.appendAddress(nil, name, qtype, ip.String())}
}

// reverse answers PTR queries for names below in-addr.arpa and ip6.arpa. If the address does not
// belong to the cluster, exists is false and the query is forwarded upstream.
func (z *zone) reverse(name string, qtype uint16) reply {
	ip := addressOf(name)
	if ip == "" {
		return reply{}
	}
	var targets []string
	for _, svc := range z.source.ServicesByIP(ip) {
		targets = append(targets, svc.Name+"."+svc.Namespace+".svc."+z.domain)
	}
	for _, slice := range z.source.SlicesByIP(ip) {
		service := slice.Labels[discoveryv1.LabelServiceName]
		if service == "" {
			continue
		}
		svc := z.source.Service(slice.Namespace, service)
		if svc == nil {
			continue
		}
		for i := range slice.Endpoints {
			for _, address := range slice.Endpoints[i].Addresses {
				// Only names that also resolve forward: endpoints of headless services and
				// endpoints with a host name.
				if address == ip && published(svc, &slice.Endpoints[i]) && (isHeadless(svc) || slice.Endpoints[i].Hostname != nil) {
					targets = append(targets, endpointName(&slice.Endpoints[i], ip)+"."+service+"."+slice.Namespace+".svc."+z.domain)
				}
			}
		}
	}
	r := reply{exists: len(targets) > 0}
	if qtype == dns.TypePTR {
		for _, target := range targets {
			r.answer = append(r.answer, &dns.PTR{Hdr: z.header(name, dns.TypePTR), Ptr: target})
		}
	}
	return r
}

// addressOf parses the address in a reverse DNS name. It returns "" if the name is not a valid
// reverse name.
func addressOf(name string) string {
	lower := strings.ToLower(name)
	if rest, ok := strings.CutSuffix(lower, ".in-addr.arpa."); ok {
		labels := strings.Split(rest, ".")
		if len(labels) != 4 {
			return ""
		}
		ip, err := netip.ParseAddr(labels[3] + "." + labels[2] + "." + labels[1] + "." + labels[0])
		if err != nil {
			return ""
		}
		return ip.String()
	}
	if rest, ok := strings.CutSuffix(lower, ".ip6.arpa."); ok {
		labels := strings.Split(rest, ".")
		if len(labels) != 32 {
			return ""
		}
		var text strings.Builder
		for i := 31; i >= 0; i-- {
			text.WriteString(labels[i])
			if i%4 == 0 && i > 0 {
				text.WriteByte(':')
			}
		}
		ip, err := netip.ParseAddr(text.String())
		if err != nil {
			return ""
		}
		return ip.String()
	}
	return ""
}

// appendAddress appends an A or AAAA record with the address ip for name to rrs, if qtype requests
// the address's family or is ANY.
func (z *zone) appendAddress(rrs []dns.RR, name string, qtype uint16, ip string) []dns.RR {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return rrs
	}
	if addr.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY) {
		return append(rrs, &dns.A{Hdr: z.header(name, dns.TypeA), A: addr.AsSlice()})
	}
	if addr.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY) {
		return append(rrs, &dns.AAAA{Hdr: z.header(name, dns.TypeAAAA), AAAA: addr.AsSlice()})
	}
	return rrs
}

func (z *zone) srv(name, target string, port uint16) dns.RR {
	return &dns.SRV{Hdr: z.header(name, dns.TypeSRV), Weight: 100, Port: port, Target: target}
}

// soa returns the SOA record of the zone, whose Minttl is the time for which clients may cache
// negative answers.
func (z *zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: z.header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: z.ttl,
	}
}

func (z *zone) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: z.ttl}
}
