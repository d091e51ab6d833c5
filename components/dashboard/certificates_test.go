package dashboard

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// signed returns a CertificateSigningRequest with a certificate.
func signed(t *testing.T, signer, name string, expires time.Time) certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: expires}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return certificatesv1.CertificateSigningRequest{
		Spec:   certificatesv1.CertificateSigningRequestSpec{SignerName: signer},
		Status: certificatesv1.CertificateSigningRequestStatus{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})},
	}
}

// TestIssued lists requests with renewed, missing and invalid certificates.
func TestIssued(t *testing.T) {
	early, late := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	invalid := certificatesv1.CertificateSigningRequest{}
	invalid.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})
	got := issued([]certificatesv1.CertificateSigningRequest{
		signed(t, "kubelet", "a", late), signed(t, "kubelet", "a", early), signed(t, "kubelet", "b", early), signed(t, "kubelet", "b", late),
		signed(t, "other", "a", early), {}, invalid,
	})
	want := []certificate{
		{"kubelet", "CN=a", "CN=a", late}, {"kubelet", "CN=b", "CN=b", late}, {"other", "CN=a", "CN=a", early},
	}
	if len(got) != len(want) {
		t.Fatalf("issued returned %v, expected %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("certificate %d is %v, expected %v", i, got[i], want[i])
		}
	}
}

// TestCertificates requests the certificates as a user who may not list CertificateSigningRequests.
func TestCertificates(t *testing.T) {
	p := start(t, false)
	if resp, _ := p.do(http.MethodGet, "/certificates", "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %s", resp.Status)
	}
	p.loginOnce()
	resp, body := p.do(http.MethodGet, "/certificates", "", nil)
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"items":[]`) || !strings.Contains(body, "listing CertificateSigningRequests") {
		t.Errorf("%s: %s", resp.Status, body)
	}
}
