package certificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func stubOf(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// found formats errors without their values, which contain certificates.
func found(errs field.ErrorList) []string {
	all := make([]string, len(errs))
	for i, e := range errs {
		all[i] = e.Field + ": " + e.Detail
	}
	return all
}

func hold(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	if got := strings.Join(found(errs), "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestStubs checks which keys are accepted in the request for a pod certificate.
func TestStubs(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := stubOf(t, newKey(t, elliptic.P256()))
	forged := append([]byte{}, good...)
	forged[len(forged)-1] ^= 1
	// The object identifier of a key agreement key, which cannot sign.
	agrees := bytes.Replace(stubOf(t, edwards), []byte{0x2b, 0x65, 0x70}, []byte{0x2b, 0x65, 0x6e}, 1)
	for name, tc := range map[string]struct {
		stub []byte
		want string
	}{
		"P-256":     {good, ""},
		"P-521":     {stubOf(t, newKey(t, elliptic.P521())), ""},
		"Ed25519":   {stubOf(t, edwards), ""},
		"P-224":     {stubOf(t, newKey(t, elliptic.P224())), "spec.stub: elliptic public keys must use curve P256, P384, or P521"},
		"X25519":    {agrees, "spec.stub: unknown public key type; supported types are Ed25519, ECDSA, and RSA"},
		"forged":    {forged, "spec.stub: invalid signature"},
		"no CSR":    {[]byte("x"), "spec.stub: must be a valid PKCS#10 CSR"},
		"too large": {make([]byte, maxStubRequest+1), "spec.stub: may not be more than 10240 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &validate.Errors{}
			checkStub(e, tc.stub, field.NewPath("spec", "stub"))
			hold(t, e.List, tc.want)
		})
	}
}

// TestIssuedCertificate checks the validation of certificates that the signer has written.
func TestIssuedCertificate(t *testing.T) {
	key := newKey(t, elliptic.P256())
	now := time.Now().Truncate(time.Second)
	old := &certificatesv1.PodCertificateRequest{Spec: certificatesv1.PodCertificateRequestSpec{
		SignerName: "a.b/c", MaxExpirationSeconds: new(int32(24 * 60 * 60)), StubPKCS10Request: stubOf(t, key),
	}}
	is := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.NewTime(now)}
	}
	sign := func(t *testing.T, by *ecdsa.PrivateKey, change func(*x509.Certificate)) string {
		t.Helper()
		leaf := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: now.UTC(), NotAfter: now.Add(2 * time.Hour).UTC()}
		if change != nil {
			change(leaf)
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, by.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der}))
	}
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	junk := string(pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: []byte("x")}))
	other := string(pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: []byte("x")}))

	for name, tc := range map[string]struct {
		leaf   func(*x509.Certificate)
		change func(t *testing.T, s *certificatesv1.PodCertificateRequestStatus)
		spec   func(*certificatesv1.PodCertificateRequestSpec)
		want   string
	}{
		"good": {},
		"invalid names": {leaf: func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses = []string{"a..b", ".c", "d."}, []string{"invalid"}
		}, want: "status.certificateChain: leaf certificate's DNSName should not contain '..'\n" +
			"status.certificateChain: leaf certificate's DNSName should not start or end with '.'\n" +
			"status.certificateChain: leaf certificate's DNSName should not start or end with '.'\n" +
			"status.certificateChain: leaf certificate should not contain invalid EmailAddress"},
		"short": {leaf: func(c *x509.Certificate) { c.NotAfter = now.Add(30 * time.Minute).UTC() }, change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.NotAfter = at(30 * time.Minute)
		}, want: "status.certificateChain: leaf certificate lifetime must be >= 1 hour"},
		"long": {leaf: func(c *x509.Certificate) { c.NotAfter = now.Add(25 * time.Hour).UTC() }, change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.NotAfter = at(25 * time.Hour)
		}, want: "status.certificateChain: leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"},
		"issued an hour ago": {leaf: func(c *x509.Certificate) { c.NotBefore = now.Add(-time.Hour).UTC() }, change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.NotBefore = at(-time.Hour)
		}, want: "status.notBefore: must be set to within 5 minutes of kube-apiserver's current time"},
		"another begin": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.NotBefore = at(time.Minute) },
			want: "status.notBefore: must be set to the NotBefore time encoded in the leaf certificate"},
		"another end": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.NotAfter = at(time.Hour) },
			want: "status.notAfter: must be set to the NotAfter time encoded in the leaf certificate"},
		"refreshed early": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.BeginRefreshAt = at(time.Minute) },
			want: "status.beginRefreshAt: must be at least 10 minutes after status.notBefore"},
		"refreshed late": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.BeginRefreshAt = at(115 * time.Minute)
		}, want: "status.beginRefreshAt: must be at least 10 minutes before status.notAfter"},
		"without times": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.NotBefore, s.NotAfter, s.BeginRefreshAt = nil, nil, nil
		}, want: "status.notBefore: must be present and consistent with the issued certificate\n" +
			"status.notAfter: must be present and consistent with the issued certificate\n" +
			"status.beginRefreshAt: must be present and in the range [notbefore+10min, notafter-10min]"},
		"for another key": {change: func(t *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain = sign(t, newKey(t, elliptic.P256()), nil)
		}, want: "status.certificateChain: leaf certificate was not issued to the requested public key"},
		"invalid stub request": {spec: func(s *certificatesv1.PodCertificateRequestSpec) { s.StubPKCS10Request = []byte("x") },
			want: "spec.stubPKCS10Request: must be a valid PKCS#10 CSR"},
		"no certificate": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = "x" },
			want: "status.certificateChain: issued certificate chain must contain at least one certificate"},
		"invalid certificate": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = junk },
			want: "status.certificateChain: leaf certificate does not parse as valid X.509"},
		"other PEM block": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = other },
			want: "status.certificateChain: issued certificate chain must consist entirely of CERTIFICATE PEM blocks"},
		"followed by junk": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain += junk },
			want: "status.certificateChain: intermediate certificate does not parse as valid X.509"},
		"followed by another block": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain += other },
			want: "status.certificateChain: issued certificate chain must consist entirely of CERTFICATE PEM blocks"},
		"too large": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain = strings.Repeat("x", maxCertificateChain+1)
		}, want: "status.certificateChain: may not be more than 102400 bytes"},
		"issued and denied": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.Conditions = append(s.Conditions, is("Denied"))
		}, want: `status.conditions.[1].type: There may be at most one condition with type "Issued", "Denied", or "Failed"`},
		"unknown condition": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.Conditions = append(s.Conditions, is("Strange"))
		}, want: `status.conditions.[1].type: supported values: "Issued", "Denied", "Failed"`},
		"not issued": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.Conditions[0].Status = metav1.ConditionFalse
		}, want: `status.conditions.[0].status: supported values: "True"`},
		"status without condition": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) { s.Conditions = nil },
			want: `status: status is immutable unless transitioning to "Issued", "Denied", or "Failed"`},
		"denied": {change: func(_ *testing.T, s *certificatesv1.PodCertificateRequestStatus) {
			s.Conditions = []metav1.Condition{is("Denied")}
		}, want: "status: non-condition status fields must be empty when denying or failing the PodCertificateRequest"},
	} {
		t.Run(name, func(t *testing.T) {
			was := old.DeepCopy()
			if tc.spec != nil {
				tc.spec(&was.Spec)
			}
			r := was.DeepCopy()
			r.Status = certificatesv1.PodCertificateRequestStatus{
				Conditions: []metav1.Condition{is("Issued")}, CertificateChain: sign(t, key, tc.leaf),
				NotBefore: at(0), NotAfter: at(2 * time.Hour), BeginRefreshAt: at(time.Hour),
			}
			if tc.change != nil {
				tc.change(t, &r.Status)
			}
			hold(t, checkPodRequestStatus(r, was), tc.want)
			if tc.want != "" {
				return
			}
			again := r.DeepCopy()
			again.Status.BeginRefreshAt = at(61 * time.Minute)
			hold(t, checkPodRequestStatus(again, r), "status: immutable after PodCertificateRequest is issued, denied, or failed")
		})
	}
}
