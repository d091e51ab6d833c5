package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// certificate is the serving certificate, read again when its file changes.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	changed time.Time
	looked  time.Time
}

// lookEvery is how often the file's time is compared at most, by handshakes.
const lookEvery = 10 * time.Second

func newCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificate) load() error {
	info, err := os.Stat(c.certFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	c.current, c.changed = &pair, info.ModTime()
	return nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) > lookEvery {
		c.looked = now
		if info, err := os.Stat(c.certFile); err == nil && !info.ModTime().Equal(c.changed) {
			// A file that is just being replaced may not fit its key yet.
			if err := c.load(); err != nil {
				c.log.Warn("serving certificate could not be read again", "error", err)
			}
		}
	}
	return c.current, nil
}

// certificates authenticates by client certificates alone.
type certificates struct{ roots *x509.CertPool }

// AuthenticateRequest verifies the client's certificate.
func (c certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
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

// mastersOnly lets the group system:masters do all.
var mastersOnly = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := a.GetUser(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
})
