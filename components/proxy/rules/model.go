// Package rules turns services and their endpoints into iptables chains. It is
// pure: equal input gives equal chains, so that what changed can be told by
// comparing. Chain names are upstream's, which tools and people know.
package rules

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"
)

// Port is one port of one service in one address family.
type Port struct {
	// Namespace, Service and Name of the port ("" if it has none).
	Namespace, Service, Name string
	// Protocol in lower case: tcp, udp, sctp.
	Protocol  string
	ClusterIP netip.Addr
	Port      uint16
	// NodePort is zero if there is none.
	NodePort uint16
	// ExternalIPs are reached like the cluster IP, by the external policy.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are like ExternalIPs but only from SourceRanges, when
	// there are any.
	LoadBalancerIPs []netip.Addr
	SourceRanges    []netip.Prefix
	// Affinity is how long a client keeps its endpoint, in seconds; zero
	// for not at all.
	Affinity int
	// LocalInternal and LocalExternal: such traffic goes only to endpoints
	// of this node.
	LocalInternal, LocalExternal bool
	// HealthCheckPort of the service, which the node lets in; zero if none.
	HealthCheckPort uint16
	// Endpoints that take new connections that may go to any node, in a fixed
	// order.
	Endpoints []Endpoint
	// LocalEndpoints take those that must stay on this node. While none here is
	// ready, endpoints that are going are among these and not among Endpoints.
	LocalEndpoints []Endpoint
	// Serving are all endpoints that go on with connections which they have,
	// on whatever node.
	Serving []netip.AddrPort
	// HasAny: the service has endpoints, if only on other nodes. Traffic for
	// which none is left is dropped then, where otherwise it is rejected.
	HasAny bool
}

// Endpoint is one address behind a port.
type Endpoint struct {
	Address netip.AddrPort
}

// ID is how comments name the port: "namespace/service:name".
func (p *Port) ID() string {
	id := p.Namespace + "/" + p.Service
	if p.Name != "" {
		id += ":" + p.Name
	}
	return id
}

// external tells whether the port is reached by more than its cluster IP.
func (p *Port) external() bool {
	return p.NodePort != 0 || len(p.ExternalIPs) > 0 || len(p.LoadBalancerIPs) > 0
}

// usesAny and usesLocal tell which endpoints the port has traffic for. Pods and
// the node itself are led to those of any node whatever the external policy says.
func (p *Port) usesAny() bool   { return !p.LocalInternal || p.external() }
func (p *Port) usesLocal() bool { return p.LocalInternal || p.LocalExternal && p.external() }

// chain names a chain of the port: KUBE-SVC- and so on with a hash.
func (p *Port) chain(prefix string) string { return prefix + hash(p.ID()+p.Protocol) }

// endpointChain names the chain of an endpoint of the port.
func (p *Port) endpointChain(e Endpoint) string {
	return "KUBE-SEP-" + hash(p.ID()+p.Protocol+e.Address.String())
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToUpper(base32.StdEncoding.EncodeToString(sum[:]))[:16]
}
