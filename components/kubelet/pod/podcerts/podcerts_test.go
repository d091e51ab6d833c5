package podcerts

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// sign issues a self-signed certificate for a request.
func sign(t *testing.T, r *certificatesv1.PodCertificateRequest, refresh time.Time) {
	t.Helper()
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	if err := csr.CheckSignature(); err != nil {
		t.Fatal(err)
	}
	signer, err := generate("ECDSAP256")
	if err != nil {
		t.Fatal(err)
	}
	after := time.Now().Add(time.Hour)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: after}
	raw, err := x509.CreateCertificate(nil, template, template, csr.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	r.Status.CertificateChain = "some words\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw, Headers: map[string]string{"a": "b"}}))
	r.Status.NotAfter, r.Status.BeginRefreshAt = &metav1.Time{Time: after}, &metav1.Time{Time: refresh}
	r.Status.Conditions = []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue}}
}

func TestCredential(t *testing.T) {
	for _, kind := range []string{"ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072"} {
		t.Run(kind, func(t *testing.T) {
			kube := fake.NewClientset(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa"}})
			asked := 0
			refresh := time.Now().Add(-time.Second)
			kube.PrependReactor("create", "podcertificaterequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
				asked++
				r.Name = r.GenerateName + strings.Repeat("x", asked)
				if asked > 2 {
					r.Status.Conditions = []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "No", Message: "never"}}
				} else {
					sign(t, r, refresh)
				}
				return true, r, kube.Tracker().Add(r)
			})
			i := &Issuer{Kube: kube, Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}} }}
			var events []string
			i.Warn = func(_ *v1.Pod, reason, message string) { events = append(events, reason+" "+message) }
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: v1.PodSpec{ServiceAccountName: "sa"}}
			p := &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: kind}
			get := func() []byte {
				t.Helper()
				key, chain, _, err := i.Credential(t.Context(), pod, "v", 0, p)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tls.X509KeyPair(chain, key); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(chain), "words") || strings.Contains(string(chain), "a: b") {
					t.Errorf("chain:\n%s", chain)
				}
				return key
			}
			if got := i.State("p", "v", 0, time.Now()); got != "" {
				t.Errorf("before the first request: %s", got)
			}
			first := get()
			for after, want := range map[time.Duration]string{0: "fresh", overdueAfter + time.Minute: "overdue_for_refresh", 2 * time.Hour: "expired"} {
				if got := i.State("p", "v", 0, time.Now().Add(after)); got != want {
					t.Errorf("after %s: %s, want %s", after, got, want)
				}
			}
			if second := get(); string(second) == string(first) || asked != 2 {
				t.Errorf("the certificate was not renewed: %d requests", asked)
			}
			// The old certificate is used until it expires; then the denial is returned.
			get()
			i.credentials[key{"p", "v", 0}].expires = time.Now().Add(-time.Second)
			_, _, _, err := i.Credential(t.Context(), pod, "v", 0, p)
			if err == nil || !strings.Contains(err.Error(), `was denied: reason="No" message="never"`) {
				t.Errorf("denied: %v", err)
			}
			if got := i.State("p", "v", 0, time.Now()); got != "denied" {
				t.Errorf("after the denial: %s", got)
			}
			i.credentials[key{"p", "v", 0}].refresh = time.Now().Add(-time.Hour)
			_, _, _, _ = i.Credential(t.Context(), pod, "v", 0, p)
			_, _, _, _ = i.Credential(t.Context(), pod, "v", 0, p)
			if len(events) != 2 || events[0] != "CertificateExpired PodCertificate expired" || events[1] != "CertificateOverdueForRefresh PodCertificate refresh overdue" {
				t.Errorf("got events %q", events)
			}
			if asked != 3 {
				t.Errorf("%d requests", asked)
			}
			i.Forget("p")
			if len(i.credentials) != 0 {
				t.Error("not removed")
			}
		})
	}
}

// TestNodeDeleted checks that a pending request is continued after the Node was deleted.
func TestNodeDeleted(t *testing.T) {
	kube := fake.NewClientset(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa"}})
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
	kube.PrependReactor("create", "podcertificaterequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		r.Name = "r"
		node = nil
		sign(t, r, time.Now().Add(time.Minute))
		return true, r, kube.Tracker().Add(r)
	})
	i := &Issuer{Kube: kube, Node: func() *v1.Node { return node }}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: v1.PodSpec{NodeName: "n", ServiceAccountName: "sa"}}
	if _, _, _, err := i.Credential(t.Context(), pod, "v", 0, &v1.PodCertificateProjection{KeyType: "ED25519"}); err != nil {
		t.Error(err)
	}
}
