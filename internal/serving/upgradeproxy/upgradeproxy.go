// Package upgradeproxy proxies HTTP requests, including connections that are upgraded to another
// protocol: SPDY and WebSockets of exec, attach, port-forward and proxy.
package upgradeproxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
)

// NewHandler returns apimachinery's handler, which it creates with the same parameters, with one difference: data
// that a backend has sent before it closes an upgraded connection always reaches the client. at is the URL of the
// backend, and rt the transport for requests, whose dialer and TLS configuration are used for upgraded connections.
//
// apimachinery's handler closes both directions when one of them fails. When a backend has sent everything and closes
// its connection while the client is still writing, for example the end of its standard input, that write fails and
// the rest of the backend's data is lost. In this handler such a write succeeds; the closed connection is detected by
// the reader after it has read all data.
func NewHandler(at *url.URL, rt http.RoundTripper, wrap, required bool, responder proxy.ErrorResponder) *proxy.UpgradeAwareHandler {
	h := proxy.NewUpgradeAwareHandler(at, rt, wrap, required, responder)
	h.UpgradeTransport = connectTransport{rt}
	return h
}

// connectTransport connects to backends of upgraded connections with the dialer and TLS
// configuration of its RoundTripper. It does not modify requests.
type connectTransport struct{ http.RoundTripper }

var (
	_ proxy.UpgradeRequestRoundTripper = connectTransport{}
	_ utilnet.RoundTripperWrapper      = connectTransport{}
)

// WrapRequest implements proxy.UpgradeRequestRoundTripper. It returns req unchanged.
func (connectTransport) WrapRequest(req *http.Request) (*http.Request, error) { return req, nil }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper. The result is only used to determine how to connect:
// with the dialer and the TLS configuration of the RoundTripper, or with defaults where it has none. Writes to the
// connections do not fail.
func (d connectTransport) WrappedRoundTripper() http.RoundTripper {
	// If the transport does not provide a dialer, use the default one.
	dial, _ := utilnet.DialerFor(d.RoundTripper)
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	config, _ := utilnet.TLSClientConfig(d.RoundTripper)
	if config == nil {
		// Without a TLS configuration, the handler would not verify the certificate of the backend.
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &ignoreWriteErrors{Conn: conn}, nil
	}}
}

// ignoreWriteErrors is a connection to a backend whose writes never fail. That the backend has
// closed the connection is detected only by reading, after all its data was read.
type ignoreWriteErrors struct{ net.Conn }

// Write implements net.Conn. It always reports that p was written, because the peer may have closed the connection; a
// reader detects that.
func (l *ignoreWriteErrors) Write(p []byte) (int, error) {
	_, _ = l.Conn.Write(p)
	return len(p), nil
}
