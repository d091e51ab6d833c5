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

// certCheckInterval is the minimum interval at which TLS handshakes check whether the serving certificate
// file has changed.
const certCheckInterval = 10 * time.Second

// newCertificate reads a serving certificate, which is reloaded when its file changes.
func newCertificate(certFile, keyFile string, log *slog.Logger) (*pki.Files, error) {
	c := &pki.Files{
		Context: "serving certificate", CertFile: certFile, KeyFile: keyFile, CheckInterval: certCheckInterval,
		OnError: func(err error) {
			log.Warn("reloading serving certificate failed, keeping the previous certificate", "file", certFile, "err", err)
		},
	}
	_, err := c.Certificate()
	return c, err
}

// clientCertAuthenticator authenticates only by client certificates.
type clientCertAuthenticator struct{ roots *x509.CertPool }

// AuthenticateRequest implements authenticator.Request. It verifies the client's certificate.
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

// superusersOnly is an authorizer that allows everything to the group system:masters.
var superusersOnly = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := a.GetUser(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
})
