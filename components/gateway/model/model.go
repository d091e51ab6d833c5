// Package model defines what the data plane of the gateway serves, independently of the API that configures it.
// Package translate creates a Config from objects of the Gateway API and from Ingresses; package dataplane serves it.
//
// A Config contains no endpoints. It names backends, and the data plane receives the endpoints of each backend
// separately, so that a change of endpoints does not require a new Config. A Config and everything in it is immutable.
package model

import (
	"crypto/tls"
	"crypto/x509"
	"regexp"
	"strconv"
	"time"
)

// PortID identifies a port at which clients connect: the name of the Service, the number and whether it is a UDP port.
type PortID struct {
	// Frontend is the name of the Service whose addresses clients connect to.
	Frontend string
	// Number is the port of the Service, which is the port of the listeners.
	Number int32
	// UDP distinguishes a UDP port from the TCP port with the same number.
	UDP bool
}

// Config is the complete configuration of the data plane.
type Config struct {
	Ports map[PortID]*Port
}

// Port is a port with its listeners. All listeners of a port have compatible kinds: either all are HTTP, or all use TLS,
// or there is one TCP or UDP listener.
type Port struct {
	Listeners []*Listener
}

// Kind is what a listener does with a connection, which follows from its protocol and TLS mode.
type Kind int

// Kinds of listeners.
const (
	HTTP           Kind = iota // requests in plain text
	HTTPS                      // requests over TLS, which the listener terminates
	TLSTerminate               // terminates TLS and forwards the content of the connection
	TLSPassthrough             // forwards the TLS connection unchanged
	TCP                        // forwards the connection
	UDP                        // forwards datagrams
)

// UsesTLS reports whether clients of listeners of this kind connect with TLS.
func (k Kind) UsesTLS() bool { return k == HTTPS || k == TLSTerminate || k == TLSPassthrough }

// Compatible reports whether listeners of the kinds can share a port, so that the hostname decides which one serves a
// connection.
func (k Kind) Compatible(o Kind) bool { return k == HTTP && o == HTTP || k.UsesTLS() && o.UsesTLS() }

// Listener accepts the connections or requests for a hostname.
type Listener struct {
	// Name is unique within the Config: namespace, Gateway and listener, separated by slashes.
	Name string
	Kind Kind
	// Hostname is an exact name, a wildcard such as "*.example.com", or "" for all names. Of the listeners of a port, the
	// most specific one serves a request.
	Hostname string
	// TLS is set if the listener terminates TLS.
	TLS *ServerTLS
	// Routes are the routes of an HTTP or HTTPS listener. Of equally specific rules, the first one matches.
	Routes []AttachedRoute
	// Forwards are the routes of the other kinds. Those of TLS listeners are selected by their hostnames. A TCP or UDP
	// listener uses the first one.
	Forwards []Forward
}

// ServerTLS is the TLS configuration of a listener that terminates TLS.
type ServerTLS struct {
	// Certificates of the listener. A client gets the first that it supports.
	Certificates []*tls.Certificate
	// ClientCAs verify client certificates. If nil, no certificate is requested.
	ClientCAs *x509.CertPool
	// AllowUnverifiedClients admits clients without a certificate, or with one that ClientCAs do not verify.
	AllowUnverifiedClients bool
}

// AttachedRoute is a route that is attached to a listener.
type AttachedRoute struct {
	// Hostnames are those of the route that the listener serves, or the listener's own. "" matches all names.
	Hostnames []string
	Route     *Route
}

// Route is an HTTPRoute, a GRPCRoute or an Ingress.
type Route struct {
	// Name is the kind, namespace and name, separated by slashes. It appears in metrics and access logs.
	Name  string
	Rules []*Rule
}

// Rule sends the requests that one of its matches matches to its backends.
type Rule struct {
	Matches  []Match
	Filters  Filters
	Backends []WeightedBackend
	Timeouts Timeouts
	Retry    *Retry
	// InvalidStatus is the status code of responses to requests for an invalid backend. Zero means 500.
	InvalidStatus int
}

// Timeouts limit the duration of a request. Zero means no limit.
type Timeouts struct {
	// Request is the time from the receipt of the request header to the end of the response.
	Request time.Duration
	// Backend is the time of one attempt at a backend.
	Backend time.Duration
}

// Retry repeats a request that a backend has not answered, or answered with one of the status codes.
type Retry struct {
	Codes    []int
	Attempts int // in addition to the first
	Backoff  time.Duration
}

// PathKind is how a path is matched.
type PathKind int

// Kinds of path matches, from the most to the least specific.
const (
	PathExact PathKind = iota
	PathRegexp
	PathPrefix // whole path elements
)

// Match is the condition of a rule. All parts must match.
type Match struct {
	PathKind PathKind
	// Path is the path or prefix. A prefix has no trailing slash, so that the prefix of all paths is "".
	Path string
	// Pattern matches the path if PathKind is PathRegexp.
	Pattern *regexp.Regexp
	// Method is empty if all methods match.
	Method  string
	Headers []ValueMatch // names in canonical form
	Query   []ValueMatch
	// HostLabels, unless zero, is the number of labels that the host of the request must have: the wildcard of an Ingress
	// stands for one label, that of a Gateway for any number.
	HostLabels int
}

// ValueMatch is the condition on a header or a query parameter.
type ValueMatch struct {
	Name, Value string
	// Pattern, unless nil, replaces Value.
	Pattern *regexp.Regexp
}

// WeightedBackend receives a part of the requests of a rule that is proportional to its weight.
type WeightedBackend struct {
	// Backend is nil if the reference is invalid. Its part of the requests is answered with Rule.InvalidStatus.
	Backend *Backend
	Weight  int32
	Filters Filters
}

// BackendProtocol is the protocol of a backend.
type BackendProtocol int

// Protocols of backends.
const (
	BackendHTTP1 BackendProtocol = iota
	BackendH2C                   // HTTP/2 without TLS, with prior knowledge
)

// BackendKey identifies a backend: a port of a Service, with everything that affects its connections.
type BackendKey struct {
	Namespace, Service string
	Port               int32
	UDP                bool // of two ports with the same number, selects that with the protocol UDP
	Protocol           BackendProtocol
	// TLS identifies the version of the TLS configuration. It is empty without TLS.
	TLS string
}

// Backend is a port of a Service.
type Backend struct {
	Key BackendKey
	// TLS is set if connections to the backend use TLS.
	TLS *BackendTLS
}

// BackendTLS is the TLS configuration of connections to a backend.
type BackendTLS struct {
	// ServerName is sent as SNI. Unless Names or URIs are set, the certificate must be valid for it.
	ServerName string
	// Roots verify the certificate. Nil selects the roots of the system.
	Roots *x509.CertPool
	// Names and URIs are subject alternative names, of which the certificate must have one. A name may be a wildcard.
	Names, URIs []string
	// Certificate is the client certificate. It may be nil.
	Certificate *tls.Certificate
}

// Forward is a TLSRoute, TCPRoute or UDPRoute: it sends connections or datagrams to backends.
type Forward struct {
	// Name is the kind, namespace and name of the route.
	Name string
	// Hostnames are the server names of TLS connections. "" matches all.
	Hostnames []string
	Backends  []WeightedBackend
}

// Filters are the filters of a rule or backend, which change requests and responses.
type Filters struct {
	RequestHeaders, ResponseHeaders *HeaderFilter
	Redirect                        *Redirect
	Rewrite                         *Rewrite
	Mirrors                         []Mirror
	CORS                            *CORS
}

// Header is a header with its value. The name is in canonical form.
type Header struct{ Name, Value string }

// HeaderFilter changes headers: first it removes, then sets, then adds.
type HeaderFilter struct {
	Remove   []string // names in canonical form
	Set, Add []Header
}

// PathModifier changes a path.
type PathModifier struct {
	// ReplacePrefix is true if Value replaces the prefix that the rule has matched, and false if it replaces the whole path.
	ReplacePrefix bool
	Value         string
}

// Redirect answers a request with the location of another URL. Empty fields are taken from the request.
type Redirect struct {
	Scheme, Hostname string
	Port             int32
	Path             *PathModifier
	Code             int
}

// Rewrite changes the host and path of a request to the backend.
type Rewrite struct {
	Hostname string // empty to preserve the host
	Path     *PathModifier
}

// Mirror sends a copy of a part of the requests to another backend, and ignores its response.
type Mirror struct {
	Backend *Backend
	// Numerator of Denominator requests are mirrored.
	Numerator, Denominator int32
}

// CORS answers preflight requests and adds the headers of cross-origin resource sharing to responses.
//
// https://fetch.spec.whatwg.org/#http-cors-protocol
type CORS struct {
	Origins                        []string // "*", "https://example.com", "https://*.example.com"
	Methods, Headers, ExposeHeader []string // may contain "*"
	Credentials                    bool
	MaxAge                         int32 // seconds
}

// Endpoint is an address of a backend.
type Endpoint struct {
	Address string // HOST:PORT
}

// Matches reports whether a value fulfills the condition.
func (m *ValueMatch) Matches(value string) bool {
	if m.Pattern != nil {
		return m.Pattern.MatchString(value)
	}
	return m.Value == value
}

// String returns namespace/name:port of the Service.
func (k BackendKey) String() string {
	return k.Namespace + "/" + k.Service + ":" + strconv.Itoa(int(k.Port))
}
