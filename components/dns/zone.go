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

// specVersion is the version of the Kubernetes DNS specification that is kept:
// https://github.com/kubernetes/dns/blob/master/docs/specification.md
const specVersion = "1.1.0"

// source is what a zone answers from. Objects are shared and not written to.
type source interface {
	// Service returns a service, nil if there is none.
	Service(namespace, name string) *corev1.Service
	// Slices returns the endpoint slices of a service.
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	// NamespaceExists tells whether a namespace is there.
	NamespaceExists(name string) bool
	// ServicesByIP returns the services with a cluster IP.
	ServicesByIP(ip string) []*corev1.Service
	// SlicesByIP returns the endpoint slices with an address.
	SlicesByIP(ip string) []*discoveryv1.EndpointSlice
}

// zone answers for the names of a cluster. It is pure: what it says depends on
// its source alone.
type zone struct {
	// domain is the cluster's, fully qualified and lower-case:
	// "cluster.local.".
	domain string
	ttl    uint32
	source source
}

// reply is an answer before it becomes a message. With no records and exists,
// the name has none of the type that was asked for.
type reply struct {
	answer, extra []dns.RR
	exists        bool
	// follow is a name outside the zone that an alias points to, to be
	// resolved upstream.
	follow string
}

// covers tells whether the zone answers for a name.
func (z *zone) covers(name string) bool { return dns.IsSubDomain(z.domain, name) }

// resolve answers a question for a name of the zone.
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

// service answers for labels, of which the last is the namespace and the one
// before it the service.
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
		// The specification asks for names of endpoints of headless services;
		// CoreDNS has those of all, and people rely on it.
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

// headless answers from the endpoints: those of one host name when it is
// given, those with a port for SRV. While nothing is ready there is no such name,
// the service's own included.
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
				own := endpointName(endpoint, ip)
				if host != "" && host != own {
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
				target := own + "." + base
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

// published tells whether an endpoint has names.
func published(svc *corev1.Service, e *discoveryv1.Endpoint) bool {
	return svc.Spec.PublishNotReadyAddresses || e.Conditions.Ready == nil || *e.Conditions.Ready
}

// portMatches compares with what was asked for, where "" asks for any port.
func portMatches(port, protocol, name, proto string) bool {
	return port == "" || strings.EqualFold(port, name) && strings.EqualFold(protocol, proto)
}

// endpointName is the label of one endpoint below its service: its host name,
// or its address made into a label.
func endpointName(e *discoveryv1.Endpoint, ip string) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return strings.ToLower(*e.Hostname)
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip)
}

// pod answers names such as 10-244-0-5.default.pod.cluster.local with the
// address in them, whoever has it.
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

// reverse answers for a name below in-addr.arpa or ip6.arpa; exists is false
// when the address is not the cluster's, so that others may be asked.
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
				// Only names that also lead back: those of headless
				// services, or that a pod was given.
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

// addressOf reads the address out of a reverse name, "" if it is none.
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

// appendAddress adds a record for ip if it is of the type asked for.
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

// soa says how long a name may be remembered not to be there.
func (z *zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: z.header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: z.ttl,
	}
}

func (z *zone) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: z.ttl}
}
