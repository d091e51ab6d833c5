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

	"hyperkube/internal/upgrade"
)

// backend is the server of one group and version elsewhere. It is made anew
// when its APIService changes. It is safe for several goroutines.
type backend struct {
	*Aggregator
	directory *directory
	// name of the APIService, and where it leads to.
	name      string
	gv        schema.GroupVersion
	namespace string
	service   string
	port      int32
	// transport is how it is reached; nil with err when that cannot be.
	transport http.RoundTripper
	err       error
	// available is what the APIService's condition says.
	available atomic.Bool
	// found is what its discovery said last; nil when it never answered.
	found atomic.Pointer[found]

	mu sync.Mutex // guards document
	// document is its OpenAPI v2, as it was last read.
	document *document
}

// found is what a server says of one group and version.
type found struct {
	version apidiscoveryv2.APIVersionDiscovery
	// stale: it did not answer when it was last asked.
	stale bool
}

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
	cfg.Wrap(x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(a.outdated.names, a.outdated.signatures))
	b.transport, b.err = transport.New(cfg)
	b.available.Store(helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available))
	return b
}

// discoveryTimeout bounds requests for discovery: clients ask for all of it
// and shall not wait for one that hangs.
const discoveryTimeout = 5 * time.Second

// ServeHTTP passes a request on in the name of its user.
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
		b.cfg.Log.DebugContext(ctx, "an aggregated server cannot be found", "apiservice", b.name, "error", err)
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
		out.Header["Audit-Id"] = id // the other server's audit log is of the same request
	}
	out.URL, out.Host = location, host
	rt := transport.NewAuthProxyRoundTripper(u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), b.transport)
	upgrading := httpstream.IsUpgradeRequest(req)
	if upgrading {
		// Connections that are taken over are dialled past the round tripper.
		transport.SetAuthProxyHeaders(out, u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
	}
	h := upgrade.NewHandler(location, rt, true, upgrading, unavailable{b, req.Context().Err})
	// A client that followed a redirection would show its credentials elsewhere.
	h.RejectForwardingRedirects = true
	h.ServeHTTP(w, out)
}

// fail answers in place of the server.
func (b *backend) fail(w http.ResponseWriter, req *http.Request, text string, code int) {
	http.Error(w, text, code)
	b.lose(req, code)
}

// lose counts a request that the server did not answer.
func (b *backend) lose(req *http.Request, code int) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || b.cfg.Lost == nil {
		return
	}
	f := b.found.Load()
	known := f != nil && slices.ContainsFunc(f.version.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool {
		return r.Resource == info.Resource && (info.Subresource == "" ||
			slices.ContainsFunc(r.Subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool { return s.Subresource == info.Subresource }))
	})
	b.cfg.Lost(info, req.Method, known, code)
}

// unavailable answers for servers that do not.
type unavailable struct {
	of *backend
	// ended tells why the whole request has ended, if it has.
	ended func() error
}

// Error as proxy.ErrorResponder.
func (u unavailable) Error(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(u.ended(), context.DeadlineExceeded) {
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		if text, merr := json.Marshal(status); merr == nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(status.Code))
			_, _ = w.Write(text)
			u.of.lose(req, int(status.Code))
			return
		}
	}
	u.of.fail(w, req, err.Error(), http.StatusServiceUnavailable)
}

func (b *backend) host(ctx context.Context) (string, error) {
	return b.directory.resolve(ctx, b.namespace, b.service, b.port, b.cfg.EndpointRouting)
}

// get asks the server in the aggregator's own name, whether it is available or
// not. The caller closes the body.
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
		return nil, fmt.Errorf("asking %s: %w", at.String(), err)
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

// statusError is that a server answered with another status than was hoped for.
type statusError struct {
	at   *url.URL
	code int
}

// Error as the interface.
func (e *statusError) Error() string { return fmt.Sprintf("bad status from %v: %d", e.at, e.code) }

// path is where discovery of the group and version is.
func (b *backend) path() string {
	if b.gv.Group == "" {
		return "/api/" + b.gv.Version
	}
	return "/apis/" + b.gv.Group + "/" + b.gv.Version
}
