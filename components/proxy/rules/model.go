// Package rules converts services and endpoints to iptables chains. It is pure: equal input yields
// equal chains, so changes are found by comparison. Chain names are those of upstream, which tools
// and users know.
package rules

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"
)

// Port is one port of a Service in one IP family, with everything that its rules depend on.
type Port struct {
	// Namespace, Service and Name identify the port. Name may be "".
	Namespace, Service, Name string
	// Protocol in lower case: tcp, udp, sctp.
	Protocol  string
	ClusterIP netip.Addr
	Port      uint16
	// NodePort is zero if there is none.
	NodePort uint16
	// ExternalIPs are handled like the cluster IP, but with the external traffic policy.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are handled like ExternalIPs, but only accept traffic from SourceRanges, if
	// there are any.
	LoadBalancerIPs []netip.Addr
	SourceRanges    []netip.Prefix
	// Affinity is the session affinity timeout in seconds. Zero disables affinity.
	Affinity int
	// LocalInternal and LocalExternal restrict internal and external traffic to endpoints of this
	// node.
	LocalInternal, LocalExternal bool
	// HealthCheckPort of the service, which the node accepts traffic for. Zero if there is none.
	HealthCheckPort uint16
	// Endpoints accept new connections that may go to any node. Their order is stable.
	Endpoints []Endpoint
	// LocalEndpoints accept connections that must stay on this node. If no local endpoint is ready,
	// LocalEndpoints contains terminating endpoints, which are not in Endpoints.
	LocalEndpoints []Endpoint
	// Serving are all endpoints on any node that continue existing connections.
	Serving []netip.AddrPort
	// HasAny is true if the service has endpoints on any node. Traffic without a usable endpoint is
	// then dropped, otherwise rejected.
	HasAny bool
}

// Endpoint is the address of an endpoint.
type Endpoint struct {
	Address netip.AddrPort
}

// ID returns the name of the port in rule comments: "namespace/service:name".
func (p *Port) ID() string {
	id := p.Namespace + "/" + p.Service
	if p.Name != "" {
		id += ":" + p.Name
	}
	return id
}

// external reports whether the port has addresses besides its cluster IP.
func (p *Port) external() bool {
	return p.NodePort != 0 || len(p.ExternalIPs) > 0 || len(p.LoadBalancerIPs) > 0
}

// usesAny and usesLocal report which endpoints receive traffic. Traffic from pods and the node
// itself may use endpoints of any node, whatever the external traffic policy is.
func (p *Port) usesAny() bool   { return !p.LocalInternal || p.external() }
func (p *Port) usesLocal() bool { return p.LocalInternal || p.LocalExternal && p.external() }

// chain returns the name of a chain of the port: prefix and hash.
func (p *Port) chain(prefix string) string { return prefix + hash(p.ID()+p.Protocol) }

// endpointChain returns the name of the chain of an endpoint.
func (p *Port) endpointChain(e Endpoint) string {
	return "KUBE-SEP-" + hash(p.ID()+p.Protocol+e.Address.String())
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToUpper(base32.StdEncoding.EncodeToString(sum[:]))[:16]
}
