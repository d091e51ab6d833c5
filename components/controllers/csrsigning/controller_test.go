package csrsigning

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func authority(t *testing.T, life time.Duration) Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: controltest.Now.Add(-time.Hour), NotAfter: controltest.Now.Add(life), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return Authority{Cert: cert, Key: key}
}

func request(t *testing.T, req *x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, req, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestSign(t *testing.T) {
	node := pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}
	client := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	serving := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	seconds := func(n int32) *int32 { return &n }
	for _, tc := range []struct {
		name, signer string
		req          x509.CertificateRequest
		usages       []certificatesv1.KeyUsage
		expires      *int32
		unapproved   bool
		// life is the expected lifetime from now, and failed the expected failure. If neither is
		// set, the request is not processed.
		life   time.Duration
		failed string
	}{
		{name: "user", signer: certificatesv1.KubeAPIServerClientSignerName, req: x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, usages: client, expires: seconds(3600), life: time.Hour},
		{name: "user, long expiration", signer: certificatesv1.KubeAPIServerClientSignerName, usages: client, expires: seconds(1 << 30), life: 24*time.Hour - backdate},
		{name: "user, short expiration", signer: certificatesv1.KubeAPIServerClientSignerName, usages: client, expires: seconds(1), life: 10 * time.Minute},
		{name: "user, server auth usage", signer: certificatesv1.KubeAPIServerClientSignerName, usages: serving, failed: "invalid usage for client certificate: server auth"},
		{name: "user, no usages", signer: certificatesv1.KubeAPIServerClientSignerName, usages: client[:1], failed: "missing required usage for client certificate: client auth"},
		{name: "not approved", signer: certificatesv1.KubeAPIServerClientSignerName, usages: client, unapproved: true},
		{name: "kubelet", signer: certificatesv1.KubeAPIServerClientKubeletSignerName, req: x509.CertificateRequest{Subject: node}, usages: client, life: 24*time.Hour - backdate},
		{name: "not a kubelet", signer: certificatesv1.KubeAPIServerClientKubeletSignerName, usages: client, failed: "subject organization is not system:nodes"},
		{name: "kubelet client with DNS name", signer: certificatesv1.KubeAPIServerClientKubeletSignerName, req: x509.CertificateRequest{Subject: node, DNSNames: []string{"n"}}, usages: client, failed: "DNS subjectAltNames are not allowed"},
		{name: "kubelet serving", signer: certificatesv1.KubeletServingSignerName, req: x509.CertificateRequest{Subject: node, IPAddresses: []net.IP{{10, 0, 0, 1}}}, usages: serving, life: 24*time.Hour - backdate},
		{name: "kubelet serving without names", signer: certificatesv1.KubeletServingSignerName, req: x509.CertificateRequest{Subject: node}, usages: serving, failed: "DNS or IP subjectAltName is required"},
		{name: "legacy unknown", signer: Signers()[3], usages: serving, life: 24*time.Hour - backdate},
		{name: "other signer", signer: "example.com/mine", usages: serving},
	} {
		t.Run(tc.name, func(t *testing.T) {
			csr := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r"},
				Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request(t, &tc.req), SignerName: tc.signer, Usages: tc.usages, ExpirationSeconds: tc.expires},
			}
			if !tc.unapproved {
				csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
			}
			f := controltest.New(t, csr)
			a := authority(t, 1000*time.Hour)
			cfg := Config{Authorities: map[string]Authority{}, Duration: 24 * time.Hour}
			for _, s := range Signers() {
				cfg.Authorities[s] = a
			}
			c, err := New(f.Env, cfg)
			if err != nil {
				t.Fatal(err)
			}
			c.Add("r")
			if err := c.Drain(context.Background()); err != nil {
				t.Fatal(err)
			}
			got, err := f.Kube.CertificatesV1().CertificateSigningRequests().Get(context.Background(), "r", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			failed := ""
			for _, c := range got.Status.Conditions {
				if c.Type == certificatesv1.CertificateFailed {
					failed = c.Message
				}
			}
			if failed != tc.failed {
				t.Fatalf("failed %q", failed)
			}
			if tc.life == 0 {
				if len(got.Status.Certificate) > 0 {
					t.Fatal("signed")
				}
				return
			}
			block, _ := pem.Decode(got.Status.Certificate)
			if block == nil {
				t.Fatal("not signed")
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if cert.CheckSignatureFrom(a.Cert) != nil || cert.IsCA || !cert.NotAfter.Equal(controltest.Now.Add(tc.life)) || cert.Subject.CommonName != tc.req.Subject.CommonName {
				t.Errorf("%+v until %v", cert.Subject, cert.NotAfter)
			}
		})
	}
}

// TestNeverOutlives checks that no certificate is valid for longer than its authority.
func TestNeverOutlives(t *testing.T) {
	a := authority(t, time.Hour)
	der, err := a.sign(&x509.CertificateRequest{PublicKey: a.Key.Public()}, nil, 24*time.Hour, controltest.Now)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.NotAfter.Equal(a.Cert.NotAfter) {
		t.Error(cert.NotAfter)
	}
	if _, err := a.sign(&x509.CertificateRequest{PublicKey: a.Key.Public()}, nil, time.Hour, controltest.Now.Add(2*time.Hour)); err == nil {
		t.Error("signed by an expired authority")
	}
}
