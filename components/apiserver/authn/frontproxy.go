package authn

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	certutil "k8s.io/client-go/util/cert"
)

// FrontProxy says which proxies may tell who a request is from.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
type FrontProxy struct {
	// CA signs the proxies' certificates: --requestheader-client-ca-file.
	CA *CABundle
	// AllowedNames are the common names of proxies; empty allows all that CA
	// has signed.
	AllowedNames []string
	// Headers that tell; empty ones mean X-Remote-User, X-Remote-Uid,
	// X-Remote-Group and X-Remote-Extra-.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

// frontProxy believes the headers of requests that come with a proxy's
// certificate.
type frontProxy struct {
	*verifier
	names   []string
	headers authenticator.Request
}

// Defaulted returns f with the usual headers where it names none.
func (f FrontProxy) Defaulted() FrontProxy {
	or := func(headers []string, usual string) []string {
		if len(headers) == 0 {
			return []string{usual}
		}
		return headers
	}
	f.UsernameHeaders = or(f.UsernameHeaders, "X-Remote-User")
	f.UIDHeaders = or(f.UIDHeaders, "X-Remote-Uid")
	f.GroupHeaders = or(f.GroupHeaders, "X-Remote-Group")
	f.ExtraHeaderPrefixes = or(f.ExtraHeaderPrefixes, "X-Remote-Extra-")
	return f
}

// errOverlap: whoever has a certificate could say to be anybody.
var errOverlap = errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users")

// overlap tells whether two bundles in PEM have a certificate in common.
func overlap(a, b []byte) bool {
	one, err := certutil.ParseCertsPEM(a)
	if err != nil {
		return false
	}
	other, err := certutil.ParseCertsPEM(b)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(one, func(c *x509.Certificate) bool { return slices.ContainsFunc(other, c.Equal) })
}

func newFrontProxy(cfg FrontProxy) (*frontProxy, error) {
	cfg = cfg.Defaulted()
	headers, err := headerrequest.New(cfg.UsernameHeaders, cfg.UIDHeaders, cfg.GroupHeaders, cfg.ExtraHeaderPrefixes)
	if err != nil {
		return nil, fmt.Errorf("configuring request headers: %w", err)
	}
	return &frontProxy{verifier: newVerifier(cfg.CA), names: cfg.AllowedNames, headers: headers}, nil
}

// AuthenticateRequest implements authenticator.Request.
func (f *frontProxy) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	// Every client's certificate comes by here, most of them from another
	// authority: those are no error but nobody's business here.
	known, err := f.verify(req.TLS)
	if known == nil || err != nil {
		return nil, false, nil
	}
	if name := req.TLS.PeerCertificates[0].Subject.CommonName; len(f.names) > 0 && !slices.Contains(f.names, name) {
		return nil, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", name)
	}
	return f.headers.AuthenticateRequest(req)
}

// proxyHeaders are the headers of front proxies of any kind.
type proxyHeaders []FrontProxy

// clear removes them.
func (p proxyHeaders) clear(h http.Header) {
	for _, f := range p {
		headerrequest.ClearAuthenticationHeaders(h, headerrequest.StaticStringSlice(f.UsernameHeaders), headerrequest.StaticStringSlice(f.UIDHeaders),
			headerrequest.StaticStringSlice(f.GroupHeaders), headerrequest.StaticStringSlice(f.ExtraHeaderPrefixes))
	}
}
