// Package testpki modifies certificates for tests.
package testpki

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"
	"time"

	"hyperkube/internal/credentials/pki"
)

// ReplaceByExpiring replaces the file of a certificate by one with the same names and key that ca
// signs and that expires in ten minutes, so that it is due for renewal.
func ReplaceByExpiring(t *testing.T, ca *pki.CA, pair *pki.Pair) {
	t.Helper()
	template := *pair.Cert
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(10*time.Minute)
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.Cert, pair.Key.Public(), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pair.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
