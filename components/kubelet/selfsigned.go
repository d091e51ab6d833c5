package kubelet

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

// renewBefore is how long before its end a certificate of the kubelet's own is
// replaced by another.
const renewBefore = 30 * 24 * time.Hour

// selfSigned is a certificate that nobody has signed, for a kubelet that was given
// none. Its method is safe for several goroutines.
type selfSigned struct {
	name      string
	addresses []netip.Addr
	now       func() time.Time

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	renew   time.Time
}

// certificate is the one to be shown now: another one when that before is about to
// expire.
func (s *selfSigned) certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.current != nil && now.Before(s.renew) {
		return s.current, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
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
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	s.current, s.renew = &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, template.NotAfter.Add(-renewBefore)
	return s.current, nil
}
