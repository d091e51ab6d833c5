package csrsigning

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

const (
	// backdate is how far in the past a certificate becomes valid, because clocks differ.
	backdate = 5 * time.Minute
	// shortLifetime is the lifetime up to which the expiration is counted from now, not from the backdated
	// start.
	shortLifetime = 8 * time.Hour
)

// keyUsages maps the key usages of the API to those of X.509.
var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

// extendedUsages maps the extended key usages of the API to those of X.509.
var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// sign returns the requested certificate in DER format. life is its lifetime from now; it is shortened to that of the
// authority's certificate. The certificate is never a CA certificate. It returns an error for unknown key usages, and
// if the authority has expired.
func (a Authority) sign(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage, life time.Duration, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generating serial number: %w", err)
	}
	cert := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               req.Subject,
		DNSNames:              req.DNSNames,
		IPAddresses:           req.IPAddresses,
		EmailAddresses:        req.EmailAddresses,
		URIs:                  req.URIs,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		BasicConstraintsValid: true,
	}
	if life >= shortLifetime {
		cert.NotAfter = cert.NotAfter.Add(-backdate)
	}
	if !now.Before(a.Cert.NotAfter) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", a.Cert.NotAfter)
	}
	if cert.NotAfter.After(a.Cert.NotAfter) {
		cert.NotAfter = a.Cert.NotAfter
	}
	for _, u := range usages {
		if k, ok := keyUsages[u]; ok {
			cert.KeyUsage |= k
		} else if x, ok := extendedUsages[u]; !ok {
			return nil, fmt.Errorf("unrecognized usage values: [%q]", u)
		} else if !slices.Contains(cert.ExtKeyUsage, x) {
			cert.ExtKeyUsage = append(cert.ExtKeyUsage, x)
		}
	}
	if !cert.NotAfter.After(cert.NotBefore) {
		return nil, errors.New("the certificate would never be valid")
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.Cert, req.PublicKey, a.Key)
	if err != nil {
		return nil, fmt.Errorf("failed to sign certificate: %w", err)
	}
	return der, nil
}
