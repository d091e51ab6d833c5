package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"hyperkube/internal/serving/upgradeproxy"
)

// upstream sends requests to the API server as one user.
type upstream struct {
	rest *rest.Config
	// client is the HTTP client with the credentials of the user. It has no timeout.
	client *http.Client
	// kube is a client of the API that uses client.
	kube kubernetes.Interface
	// url is the URL of the API server. Its path may not be empty.
	url     *url.URL
	proxy   *httputil.ReverseProxy
	upgrade http.Handler
}

// newUpstream returns an upstream with the credentials of cfg. It returns an error if cfg is invalid, for example because a
// certificate file cannot be read. It does not connect.
func newUpstream(cfg *rest.Config, log *slog.Logger) (*upstream, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // watches and logs do not end
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{}
	at, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("parsing the address of the API server: %w", err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	upgradeTransport, err := newUpgradeTransport(cfg)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	u := &upstream{rest: cfg, client: client, kube: kube, url: at}
	fail := failure{log}
	rt := client.Transport
	if rt == nil {
		rt = http.DefaultTransport
	}
	u.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(at)
			strip(r.Out.Header)
		},
		Transport:     rt,
		FlushInterval: -1, // lines of logs are shown when they are written
		ErrorHandler:  fail.handle,
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Set-Cookie")
			// The guard has set these. The proxy would add the values of the API server to them.
			for _, name := range []string{"Cache-Control", "X-Content-Type-Options", "X-Frame-Options", "Content-Security-Policy", "Access-Control-Allow-Origin"} {
				r.Header.Del(name)
			}
			return nil
		},
	}
	handler := upgradeproxy.NewHandler(at, rt, false, true, fail)
	handler.UseRequestLocation, handler.UseLocationHost, handler.AppendLocationPath = true, true, at.Path != "" && at.Path != "/"
	handler.UpgradeTransport = upgradeTransport
	u.upgrade = handler
	return u, nil
}

// newUpgradeTransport returns the transport for exec, attach and port-forward. It adds the credentials of cfg to requests,
// and connects with HTTP/1.1, because connections with HTTP/2 cannot be upgraded.
func newUpgradeTransport(cfg *rest.Config) (utilproxy.UpgradeRequestRoundTripper, error) {
	transportConfig, err := cfg.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	tlsConfig, err := transport.TLSConfigFor(transportConfig)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	rt := utilnet.SetOldTransportDefaults(&http.Transport{TLSClientConfig: tlsConfig, DialContext: dial})
	credentials, err := transport.HTTPWrappersForConfig(transportConfig, utilproxy.MirrorRequest)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	return utilproxy.NewUpgradeRequestRoundTripper(rt, credentials), nil
}

// ServeHTTP forwards a request to the API server.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", proxiedPolicy)
	if isWebSocket(r) {
		strip(r.Header)
		r.Header.Del("Origin") // it is the origin of this server
		u.upgrade.ServeHTTP(w, r)
		return
	}
	u.proxy.ServeHTTP(w, r)
}

// close closes idle connections.
func (u *upstream) close() { u.client.CloseIdleConnections() }

// strip removes what is between the browser and this server from the header of a request.
func strip(h http.Header) {
	for _, name := range []string{"Cookie", "Authorization", "Referer", "Origin", headerName} {
		h.Del(name)
	}
}

// failure responds to requests that could not be forwarded.
type failure struct{ log *slog.Logger }

func (f failure) handle(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		return // the page has closed the request
	}
	f.log.Debug("request to the API server failed, the page shows the error", "method", r.Method, "path", r.URL.Path, "err", err)
	http.Error(w, "the API server cannot be reached: "+err.Error(), http.StatusBadGateway)
}

// Error implements proxy.ErrorResponder.
func (f failure) Error(w http.ResponseWriter, r *http.Request, err error) { f.handle(w, r, err) }
