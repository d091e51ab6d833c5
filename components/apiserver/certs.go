package apiserver

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/internal/credentials/pki"
)

// certCheckInterval is the minimum interval between checks whether the serving certificate file has
// changed. The checks happen in TLS handshakes.
const certCheckInterval = 10 * time.Second

// newCertificate reads a serving certificate and its key. Later TLS handshakes read the files again
// when they have changed. It returns an error if the files are unusable now; a later error is
// logged, and the previous certificate stays in use.
func newCertificate(certFile, keyFile string, log *slog.Logger) (*pki.Files, error) {
	c := &pki.Files{
		Context: "serving certificate", CertFile: certFile, KeyFile: keyFile, CheckInterval: certCheckInterval,
		OnError: func(err error) {
			log.Warn("reloading serving certificate of the API server failed; the previous certificate stays in use, retrying at later connections: fix the file before that certificate expires", "file", certFile, "err", err)
		},
	}
	_, err := c.Certificate()
	return c, err
}

// clientCertAuthenticator authenticates requests only by client certificates that chain to one of the CAs in roots.
// The server uses it if Config.Authenticator is nil, mainly in tests. With nil roots it authenticates no request.
type clientCertAuthenticator struct{ roots *x509.CertPool }

// AuthenticateRequest implements authenticator.Request. The user's name is the common name of the client's
// certificate. The groups are its organizations and system:authenticated. ok is false if there is no certificate or
// roots is nil. A certificate that does not chain to roots is an error.
func (c clientCertAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if c.roots == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	opts := x509.VerifyOptions{Roots: c.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if more := req.TLS.PeerCertificates[1:]; len(more) > 0 {
		opts.Intermediates = x509.NewCertPool()
		for _, m := range more {
			opts.Intermediates.AddCert(m)
		}
	}
	leaf := req.TLS.PeerCertificates[0]
	if _, err := leaf.Verify(opts); err != nil {
		return nil, false, fmt.Errorf("client certificate: %w", err)
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   leaf.Subject.CommonName,
		Groups: append(slices.Clone(leaf.Subject.Organization), user.AllAuthenticated),
	}}, true, nil
}

// superusersOnly is an authorizer that allows everything to the group system:masters, and nothing
// to other users. The server uses it if Config.Authorizer is nil.
var superusersOnly = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := a.GetUser(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
})
