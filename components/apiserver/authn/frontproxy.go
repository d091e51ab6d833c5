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

// FrontProxy configures authenticating proxies, which send requests of users with their own client
// certificate and the user in headers.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
type FrontProxy struct {
	// CA verifies the proxies' certificates: --requestheader-client-ca-file.
	CA *CABundle
	// AllowedNames are the common names of proxies. If empty, all certificates signed by CA are
	// allowed.
	AllowedNames []string
	// UsernameHeaders, UIDHeaders, GroupHeaders and ExtraHeaderPrefixes name the headers that contain the user. The
	// defaults are X-Remote-User, X-Remote-Uid, X-Remote-Group and X-Remote-Extra-.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

// frontProxy authenticates requests of front proxies: after it has verified the proxy's
// certificate, it takes the user from the headers.
type frontProxy struct {
	*verifier
	names   []string
	headers authenticator.Request
}

// Defaulted returns f with default headers for empty fields.
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

// errOverlap is the error of New if the client CA and the front proxy CA have a certificate in common and no proxy
// names are configured. Any client certificate could then set arbitrary users.
var errOverlap = errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users")

// shareCertificate reports whether two PEM bundles have a certificate in common. It returns false if one is invalid.
func shareCertificate(a, b []byte) bool {
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

// newFrontProxy returns the authenticator for requests of a front proxy, with the default headers for those that cfg
// does not set.
func newFrontProxy(cfg FrontProxy) (*frontProxy, error) {
	cfg = cfg.Defaulted()
	headers, err := headerrequest.New(cfg.UsernameHeaders, cfg.UIDHeaders, cfg.GroupHeaders, cfg.ExtraHeaderPrefixes)
	if err != nil {
		return nil, fmt.Errorf("configuring request headers: %w", err)
	}
	return &frontProxy{verifier: newVerifier(cfg.CA), names: cfg.AllowedNames, headers: headers}, nil
}

// AuthenticateRequest implements authenticator.Request. It returns the user in the headers if the request has a valid
// certificate of a front proxy. It returns false if it has none or names no user, and an error if the common name of
// the certificate is not allowed.
func (f *frontProxy) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	// Requests with any client certificate reach this code, most of them signed by another CA.
	// Those are not an error but are ignored here.
	known, err := f.verify(req.TLS)
	if known == nil || err != nil {
		return nil, false, nil
	}
	if name := req.TLS.PeerCertificates[0].Subject.CommonName; len(f.names) > 0 && !slices.Contains(f.names, name) {
		return nil, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", name)
	}
	return f.headers.AuthenticateRequest(req)
}

// proxyHeaders are the names of headers in which front proxies send users: the default and the
// configured ones.
type proxyHeaders []FrontProxy

// clear removes the headers that name users from h, so that handlers and aggregated servers do not see headers that a
// client may have forged.
func (p proxyHeaders) clear(h http.Header) {
	for _, f := range p {
		headerrequest.ClearAuthenticationHeaders(h, headerrequest.StaticStringSlice(f.UsernameHeaders), headerrequest.StaticStringSlice(f.UIDHeaders),
			headerrequest.StaticStringSlice(f.GroupHeaders), headerrequest.StaticStringSlice(f.ExtraHeaderPrefixes))
	}
}
