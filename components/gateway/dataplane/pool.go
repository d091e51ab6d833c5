package dataplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"hyperkube/components/gateway/http1"
	"hyperkube/components/gateway/model"
)

// Timeouts and limits of connections to backends.
const (
	dialTimeout = 5 * time.Second
	// idleTimeout closes idle connections to an endpoint. Servers usually close them after 60 seconds or more, and a
	// request that is sent while the server closes the connection fails.
	idleTimeout = 50 * time.Second
	// maxIdlePerEndpoint is the number of idle connections that are kept for each endpoint.
	maxIdlePerEndpoint = 256
)

// pool contains the endpoints of a backend with their connections. It is safe for concurrent use.
type pool struct {
	backend   *model.Backend
	connect   dialer
	endpoints atomic.Pointer[[]*endpoint]
	next      atomic.Uint32 // round robin
}

// endpoint is an address of a backend, with the connections to it.
type endpoint struct {
	address   string
	transport transport
}

// transport sends requests to one endpoint.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// dialer connects to an address over TCP.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// newPool returns a pool without endpoints. It uses connect for the connections of HTTP/1.1.
func newPool(b *model.Backend, connect dialer) *pool {
	p := &pool{backend: b, connect: connect}
	p.endpoints.Store(&[]*endpoint{})
	return p
}

// set replaces the endpoints. Connections of endpoints that remain are kept. Requests at removed endpoints continue; their
// connections are closed when they become idle.
func (p *pool) set(endpoints []model.Endpoint) {
	old := map[string]*endpoint{}
	for _, e := range *p.endpoints.Load() {
		old[e.address] = e
	}
	list := make([]*endpoint, 0, len(endpoints))
	for _, e := range endpoints {
		if known := old[e.Address]; known != nil {
			list = append(list, known)
			delete(old, e.Address)
			continue
		}
		list = append(list, &endpoint{address: e.Address, transport: p.transport(e.Address)})
	}
	p.endpoints.Store(&list)
	for _, e := range old {
		e.transport.CloseIdleConnections()
	}
}

// transport returns a new transport for an endpoint, whose connections belong to this endpoint only.
func (p *pool) transport(address string) transport {
	var secure *tls.Config
	if p.backend.TLS != nil {
		secure = clientConfig(p.backend.TLS)
	}
	if p.backend.Key.Protocol == model.BackendHTTP1 {
		return http1.New(http1.Config{
			Address: address, Dial: p.connect, DialTimeout: dialTimeout, TLS: secure, IdleTimeout: idleTimeout, MaxIdle: maxIdlePerEndpoint,
		})
	}
	t := &http.Transport{
		DialContext:        (&net.Dialer{Timeout: dialTimeout}).DialContext,
		IdleConnTimeout:    idleTimeout,
		DisableCompression: true, // responses are passed on unchanged
		Protocols:          new(http.Protocols),
		TLSClientConfig:    secure,
	}
	t.Protocols.SetHTTP2(secure != nil)
	t.Protocols.SetUnencryptedHTTP2(secure == nil)
	return t
}

// scheme returns the scheme of URLs of the backend.
func (p *pool) scheme() string {
	if p.backend.TLS != nil {
		return "https"
	}
	return "http"
}

// pick returns the next endpoint in turn. It returns nil if there are no endpoints.
func (p *pool) pick() *endpoint {
	list := *p.endpoints.Load()
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list[p.next.Add(1)%uint32(len(list))]
}

// size returns the number of endpoints.
func (p *pool) size() int { return len(*p.endpoints.Load()) }

// close closes the idle connections of all endpoints.
func (p *pool) close() {
	for _, e := range *p.endpoints.Load() {
		e.transport.CloseIdleConnections()
	}
}

// dial connects to an endpoint of the backend, and tries others if that fails. It is for backends of forwarded connections.
func (p *pool) dial(ctx context.Context) (net.Conn, error) {
	err := errNoEndpoints
	for range min(p.size(), maxAttempts) {
		e := p.pick()
		if e == nil {
			break
		}
		var conn net.Conn
		conn, err = (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", e.address)
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

var (
	errNoEndpoints  = errors.New("the backend has no ready endpoints")
	errNoSubject    = errors.New("the certificate of the backend has none of the required subject alternative names")
	errNoBackendKey = errors.New("the backend sent no certificate")
)

// clientConfig returns the configuration of TLS connections to a backend. The certificate of the backend must be valid
// for its ServerName or, if the policy has subject alternative names, contain one of them.
func clientConfig(b *model.BackendTLS) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: b.ServerName, RootCAs: b.Roots}
	if b.Certificate != nil {
		c.Certificates = []tls.Certificate{*b.Certificate}
	}
	if len(b.Names) == 0 && len(b.URIs) == 0 {
		return c
	}
	// The certificate must have one of the names instead of the server name.
	c.InsecureSkipVerify = true // VerifyConnection verifies it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errNoBackendKey
		}
		leaf := state.PeerCertificates[0]
		options := x509.VerifyOptions{Roots: b.Roots, Intermediates: x509.NewCertPool()}
		for _, certificate := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(certificate)
		}
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
		if !hasSubject(leaf, b) {
			return errNoSubject
		}
		return nil
	}
	return c
}

// hasSubject reports whether a certificate has one of the names or URIs that b requires. A wildcard in a required name
// matches a certificate with the same wildcard or with a name of one more label.
func hasSubject(leaf *x509.Certificate, b *model.BackendTLS) bool {
	for _, want := range b.Names {
		for _, have := range leaf.DNSNames {
			have = strings.ToLower(have)
			if have == want || wildcardMatches(have, want) || wildcardMatches(want, have) {
				return true
			}
		}
	}
	for _, want := range b.URIs {
		for _, have := range leaf.URIs {
			if have.String() == want {
				return true
			}
		}
	}
	return false
}

// wildcardMatches reports whether pattern is a wildcard and name has exactly one label in its place.
func wildcardMatches(pattern, name string) bool {
	suffix, ok := strings.CutPrefix(pattern, "*")
	if !ok {
		return false
	}
	label, found := strings.CutSuffix(name, suffix)
	return found && label != "" && label != "*" && !strings.Contains(label, ".")
}
