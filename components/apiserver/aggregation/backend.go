package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/httpstream"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/x509metrics"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"hyperkube/internal/serving/upgradeproxy"
)

// backend is the connection of the Aggregator to another server that serves one group and version. It proxies requests
// to the server and tracks its availability. When the APIService changes, a new backend replaces it. It is safe for
// concurrent use.
type backend struct {
	*Aggregator
	directory *directory
	// name is the name of the APIService. gv, namespace, service and port are its group version and
	// the Service of the server.
	name      string
	gv        schema.GroupVersion
	namespace string
	service   string
	port      int32
	// transport connects to the server. It is nil, with err set, if the configuration is invalid.
	transport http.RoundTripper
	err       error
	// available is whether the APIService's condition Available was True when the APIService was last received.
	available atomic.Bool
	// discovered is the last discovery result. It is nil if the server has never responded.
	discovered atomic.Pointer[discovered]

	mu sync.Mutex // guards document
	// document is the server's OpenAPI v2 document as last read.
	document *document
}

// discovered is the discovery result of a server for one group and version.
type discovered struct {
	version apidiscoveryv2.APIVersionDiscovery
	// stale means that the server did not respond to the last request.
	stale bool
}

// newBackend returns the backend for an APIService that refers to another server. If the APIService
// has invalid settings, requests fail with the error.
func (a *Aggregator) newBackend(s *apiregistrationv1.APIService) *backend {
	b := &backend{
		Aggregator: a, directory: newDirectory(a.cfg.Registry),
		name: s.Name, gv: groupVersion(s),
		namespace: s.Spec.Service.Namespace, service: s.Spec.Service.Name, port: 443,
	}
	if s.Spec.Service.Port != nil {
		b.port = *s.Spec.Service.Port
	}
	cfg := &transport.Config{TLS: transport.TLSConfig{
		Insecure:   s.Spec.InsecureSkipTLSVerify,
		ServerName: b.service + "." + b.namespace + ".svc",
		CAData:     s.Spec.CABundle, GetCertHolder: a.holder,
	}}
	cfg.Wrap(x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(a.certificateMetrics.names, a.certificateMetrics.signatures))
	b.transport, b.err = transport.New(cfg)
	b.available.Store(helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available))
	return b
}

// discoveryTimeout limits requests for discovery documents, so that a client that reads the
// discovery of all groups does not wait for a server that does not respond.
const discoveryTimeout = 5 * time.Second

// ServeHTTP proxies a request to the other server. The user of the request is in headers, and this server
// authenticates with its client certificate. It responds with 503 if the server is not available or has no address,
// and with 500 if the APIService has invalid settings. Requests for discovery documents are limited to
// discoveryTimeout.
func (b *backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !b.available.Load() {
		b.fail(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if b.err != nil {
		b.fail(w, req, b.err.Error(), http.StatusInternalServerError)
		return
	}
	u, ok := apirequest.UserFrom(req.Context())
	if !ok {
		b.fail(w, req, "missing user", http.StatusInternalServerError)
		return
	}
	ctx := req.Context()
	host, err := b.host(ctx)
	if err != nil {
		b.cfg.Log.DebugContext(ctx, "resolving address of aggregated API server failed, request rejected with 503", "apiservice", b.name, "err", err)
		b.fail(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if strings.Count(strings.Trim(req.URL.Path, "/"), "/") < 3 && b.gv.Group != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, discoveryTimeout)
		defer cancel()
	}
	location := &url.URL{Scheme: "https", Host: host, Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	out := req.WithContext(ctx)
	out.Header = req.Header.Clone()
	if id := w.Header()["Audit-Id"]; len(id) > 0 {
		out.Header["Audit-Id"] = id // the other server's audit log uses the same ID
	}
	out.URL, out.Host = location, host
	rt := transport.NewAuthProxyRoundTripper(u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), b.transport)
	upgrading := httpstream.IsUpgradeRequest(req)
	if upgrading {
		// Upgraded connections bypass the round tripper.
		transport.SetAuthProxyHeaders(out, u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
	}
	h := upgradeproxy.NewHandler(location, rt, true, upgrading, unavailable{b, req.Context().Err})
	// A client that follows a redirect would send its credentials to another server.
	h.RejectForwardingRedirects = true
	h.ServeHTTP(w, out)
}

// fail sends the response code with text to the client, because the request could not be proxied to the other server,
// and reports the failure.
func (b *backend) fail(w http.ResponseWriter, req *http.Request, text string, code int) {
	http.Error(w, text, code)
	b.reportFailure(req, code)
}

// reportFailure calls Config.ProxyFailed for a request that was not proxied successfully and got the response status
// code. It does nothing if the function is nil.
func (b *backend) reportFailure(req *http.Request, code int) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || b.cfg.ProxyFailed == nil {
		return
	}
	f := b.discovered.Load()
	known := f != nil && slices.ContainsFunc(f.version.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool {
		return r.Resource == info.Resource && (info.Subresource == "" ||
			slices.ContainsFunc(r.Subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool { return s.Subresource == info.Subresource }))
	})
	b.cfg.ProxyFailed(info, req.Method, known, code)
}

// unavailable is the proxy.ErrorResponder of a backend. It responds to requests that the other server has not received
// because it cannot be reached.
type unavailable struct {
	backend *backend
	// requestErr returns the error of the request's context, if it is done.
	requestErr func() error
}

// Error implements proxy.ErrorResponder. It responds with 504 if the timeout of the request has expired, and
// otherwise with 503 and the text of err.
func (u unavailable) Error(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(u.requestErr(), context.DeadlineExceeded) {
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		if text, merr := json.Marshal(status); merr == nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(status.Code))
			_, _ = w.Write(text)
			u.backend.reportFailure(req, int(status.Code))
			return
		}
	}
	u.backend.fail(w, req, err.Error(), http.StatusServiceUnavailable)
}

// host returns the address, HOST:PORT, to which the next request for the other server is sent. It returns an error if
// the Service, its port or an endpoint does not exist.
func (b *backend) host(ctx context.Context) (string, error) {
	return b.directory.resolve(ctx, b.namespace, b.service, b.port, b.cfg.EndpointRouting)
}

// get sends a GET request to the other server as the user system:kube-aggregator, for discovery and availability
// checks. It does so even if the server is marked as unavailable, and does not follow redirects. The caller closes
// the body of the response, whatever its status is.
func (b *backend) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	if b.err != nil {
		return nil, b.err
	}
	host, err := b.host(ctx)
	if err != nil {
		return nil, err
	}
	at := url.URL{Scheme: "https", Host: host, Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("requesting %s: %w", at.String(), err)
	}
	maps.Copy(req.Header, header)
	transport.SetAuthProxyHeaders(req, "system:kube-aggregator", "", []string{"system:masters"}, nil)
	client := http.Client{Transport: b.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("failing or missing response from %s: %w", at.String(), err)
	}
	return resp, nil
}

// statusError is the error for a response of another server with an unexpected HTTP status.
type statusError struct {
	at   *url.URL
	code int
}

// Error returns the text for the condition Available of the APIService.
func (e *statusError) Error() string { return fmt.Sprintf("bad status from %v: %d", e.at, e.code) }

// path returns the path of the discovery document of the backend's group and version.
func (b *backend) path() string {
	if b.gv.Group == "" {
		return "/api/" + b.gv.Version
	}
	return "/apis/" + b.gv.Group + "/" + b.gv.Version
}
