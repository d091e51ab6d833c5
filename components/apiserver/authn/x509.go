package authn

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/apis/asn1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// verifier verifies client certificates against a CA bundle, and caches the result while the
// certificate is in memory. The TLS stack parses a certificate at most once per connection, so the
// pointer to it identifies the connection: the cached result is dropped when the last connection
// with the certificate closes.
type verifier struct {
	bundle *CABundle
	// cache contains a *verification for each weak.Pointer[x509.Certificate].
	cache sync.Map
	now   func() time.Time
}

// verification is the cached result of verifying a client certificate.
type verification struct {
	pool *caPool
	// until is when the first certificate of the chain expires. Failures are cached only briefly
	// because they may be temporary.
	until time.Time
	// failure is the reason why verification failed.
	failure error
	// resp is nil if the certificate has no common name.
	resp *authenticator.Response
	err  error
}

// failureTTL is how long the failure to verify a certificate is cached.
const failureTTL = time.Minute

// newVerifier returns a verifier of client certificates that are signed by a CA in bundle.
func newVerifier(bundle *CABundle) *verifier { return &verifier{bundle: bundle, now: time.Now} }

// verify returns the result of verifying the client certificate of a TLS connection, from the cache if the CA bundle
// has not changed. It returns nil and no error if the client has sent no certificate, and an error if the certificate
// does not chain to a CA of the bundle.
func (v *verifier) verify(state *tls.ConnectionState) (*verification, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, nil
	}
	leaf := state.PeerCertificates[0]
	key := weak.Make(leaf)
	pool := v.bundle.current.Load()
	now := v.now()
	if got, ok := v.cache.Load(key); ok {
		if known, ok := got.(*verification); ok && known.pool == pool && now.Before(known.until) {
			if known.failure != nil {
				return nil, known.failure
			}
			return known, nil
		}
	}
	opts := x509.VerifyOptions{
		Roots:       pool.pool,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(state.PeerCertificates) > 1 {
		opts.Intermediates = x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
	}
	known := &verification{pool: pool}
	chains, err := leaf.Verify(opts)
	if err != nil {
		known.failure = fmt.Errorf("verifying certificate SN=%d, SKID=%s, AKID=%s failed: %w",
			leaf.SerialNumber, colonHex(leaf.SubjectKeyId), colonHex(leaf.AuthorityKeyId), err)
		if opts.Intermediates != nil {
			// Another connection may send the missing intermediates, so the failure is not cached.
			return nil, known.failure
		}
		known.until = now.Add(failureTTL)
	} else {
		known.until = leaf.NotAfter
		for _, c := range chains[0] {
			if c.NotAfter.Before(known.until) {
				known.until = c.NotAfter
			}
		}
		known.resp, known.err = userOf(leaf)
	}
	if _, again := v.cache.Swap(key, known); !again {
		runtime.AddCleanup(leaf, func(key weak.Pointer[x509.Certificate]) { v.cache.Delete(key) }, key)
	}
	if known.failure != nil {
		return nil, known.failure
	}
	return known, nil
}

// clientCert authenticates requests by client certificates. The common name is the user name, the organizations are
// the user's groups.
type clientCert struct{ *verifier }

// AuthenticateRequest implements authenticator.Request. It returns false if there is no certificate or it has no
// common name, and an error if it cannot be verified or its UID is invalid.
func (c clientCert) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	known, err := c.verify(req.TLS)
	if known == nil || err != nil {
		return nil, false, err
	}
	return known.resp, known.resp != nil, known.err
}

// userOf returns the user of a certificate, or nil if the certificate has no common name. It returns an error if the
// certificate contains an invalid UID.
func userOf(cert *x509.Certificate) (*authenticator.Response, error) {
	if cert.Subject.CommonName == "" {
		return nil, nil
	}
	uid, err := uidOf(cert)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(cert.Raw)
	return authenticated(&authenticator.Response{User: &user.DefaultInfo{
		Name:   cert.Subject.CommonName,
		UID:    uid,
		Groups: cert.Subject.Organization,
		Extra:  map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}}), nil
}

// uidOf returns the UID of the user from the subject attribute that Kubernetes has defined for it, or "" if the
// certificate has none. Several UIDs and an empty one are an error.
func uidOf(cert *x509.Certificate) (string, error) {
	var uid string
	found := 0
	for _, name := range cert.Subject.Names {
		if !name.Type.Equal(asn1.X509UID()) {
			continue
		}
		s, ok := name.Value.(string)
		if !ok {
			return "", errors.New("unable to parse UID into a string")
		}
		uid = s
		found++
	}
	switch {
	case found > 1:
		return "", fmt.Errorf("expected 1 UID, but found %d", found)
	case found == 1 && uid == "":
		return "", errors.New("UID cannot be an empty string")
	}
	return uid, nil
}

// colonHex returns data as hexadecimal bytes with colons between them, e.g. "0A:FF".
func colonHex(data []byte) string {
	parts := make([]string, len(data))
	for i, b := range data {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}
