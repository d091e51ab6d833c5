// Package upgrade passes requests on, and with them connections that change
// their protocol: SPDY and WebSockets of exec, attach, port-forward and proxy.
package upgrade

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
)

// NewHandler returns apimachinery's handler with one difference: what a backend
// said before it closed an upgraded connection always reaches the client.
//
// The handler ends both directions when one of them ends. A backend that has
// said all it had to say closes its side while the client may still be writing,
// say the end of its standard input; that write fails, and with it the copying of
// what the backend had said would end half way. Here such a write is taken as
// done: that the backend has gone is for its reader to find, after all that came
// before.
func NewHandler(at *url.URL, rt http.RoundTripper, wrap, required bool, responder proxy.ErrorResponder) *proxy.UpgradeAwareHandler {
	h := proxy.NewUpgradeAwareHandler(at, rt, wrap, required, responder)
	h.UpgradeTransport = dialing{rt}
	return h
}

// dialing connects as its RoundTripper does, and leaves requests as they are.
type dialing struct{ http.RoundTripper }

var (
	_ proxy.UpgradeRequestRoundTripper = dialing{}
	_ utilnet.RoundTripperWrapper      = dialing{}
)

// WrapRequest implements proxy.UpgradeRequestRoundTripper.
func (dialing) WrapRequest(req *http.Request) (*http.Request, error) { return req, nil }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper. What it returns is
// only asked for how to connect.
func (d dialing) WrappedRoundTripper() http.RoundTripper {
	// Transports that cannot be asked are connected to as anything else is.
	dial, _ := utilnet.DialerFor(d.RoundTripper)
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	config, _ := utilnet.TLSClientConfig(d.RoundTripper)
	if config == nil {
		// Without one the handler would not verify who answers.
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &listening{Conn: conn}, nil
	}}
}

// listening is a connection whose end is told by reading alone.
type listening struct{ net.Conn }

// Write writes, or drops what nobody reads any more.
func (l *listening) Write(p []byte) (int, error) {
	_, _ = l.Conn.Write(p)
	return len(p), nil
}
