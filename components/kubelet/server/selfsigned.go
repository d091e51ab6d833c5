package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// NewSelfSigned returns the provider of a self-signed certificate for a node name and IP addresses. The
// certificate is created on the first call of Certificate.
func NewSelfSigned(name string, addresses []netip.Addr) *SelfSigned {
	return &SelfSigned{name: name, addresses: addresses, now: time.Now}
}

// renewBefore is how long before its expiry a self-signed certificate is replaced.
const renewBefore = 30 * 24 * time.Hour

// SelfSigned provides a self-signed serving certificate for a kubelet without a configured one. The
// certificate is only in memory. It is safe for concurrent use.
type SelfSigned struct {
	name      string
	addresses []netip.Addr
	now       func() time.Time

	mu      sync.Mutex // guards the following fields
	current *tls.Certificate
	renew   time.Time
}

// Certificate returns the current certificate. It creates a new one, valid for a year, on the first call and
// when the previous one expires within renewBefore.
func (s *SelfSigned) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.current != nil && now.Before(s.renew) {
		return s.current, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: s.name + "@" + strconv.FormatInt(now.Unix(), 10)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{s.name},
	}
	for _, ip := range s.addresses {
		template.IPAddresses = append(template.IPAddresses, ip.AsSlice())
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("creating certificate: %w", err)
	}
	s.current, s.renew = &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, template.NotAfter.Add(-renewBefore)
	return s.current, nil
}
