package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// authority returns a self-signed certificate and its key.
func (s *space) authority() (string, *x509.Certificate, crypto.Signer) {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: s.name}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		s.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})), cert, key
}

// sign issues the certificates that are requested from a signer, until ctx is canceled.
func (s *space) sign(ctx context.Context, signer string, ca *x509.Certificate, key crypto.Signer) error {
	client := s.kube.CertificatesV1().PodCertificateRequests(s.name)
	w, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for ev := range w.ResultChan() {
		r, ok := ev.Object.(*certificatesv1.PodCertificateRequest)
		if !ok || r.Spec.SignerName != signer || len(r.Status.Conditions) > 0 {
			continue
		}
		csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		if err != nil {
			return err
		}
		from, until := time.Now().Add(-time.Minute).Truncate(time.Second), time.Now().Add(2*time.Hour).Truncate(time.Second)
		template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: string(r.Spec.PodUID)}, NotBefore: from, NotAfter: until}
		raw, err := x509.CreateCertificate(rand.Reader, template, ca, csr.PublicKey, key)
		if err != nil {
			return err
		}
		r = r.DeepCopy()
		r.Status.CertificateChain = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
		r.Status.NotBefore, r.Status.NotAfter, r.Status.BeginRefreshAt = &metav1.Time{Time: from}, &metav1.Time{Time: until}, &metav1.Time{Time: until.Add(-time.Hour)}
		r.Status.Conditions = []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue, Reason: "Signed", LastTransitionTime: metav1.Now()}}
		if _, err := client.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// trust: a pod has a certificate from a signer, and the trust anchors of a ClusterTrustBundle,
// which are updated with the bundle.
func (s *space) trust() {
	first, ca, key := s.authority()
	second, _, _ := s.authority()
	bundle := func(text string) string {
		return "apiVersion: certificates.k8s.io/v1\nkind: ClusterTrustBundle\nmetadata: {name: " + s.name + "}\nspec:\n  trustBundle: |\n    " +
			strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
	}
	s.apply(bundle(first))
	s.Cleanup(func() { s.do("delete", "clustertrustbundle", s.name) })
	signer := s.name + ".example.com/pods"
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan error, 1)
	go func() { done <- s.sign(ctx, signer, ca, key) }()
	defer func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			s.Error(err)
		}
	}()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - name: v
    projected:
      sources:
      - clusterTrustBundle: {name: ` + s.name + `, path: ca.pem}
      - podCertificate: {signerName: ` + signer + `, keyType: ED25519, credentialBundlePath: bundle.pem, keyPath: key.pem, certificateChainPath: chain.pem}
  containers:
  - {name: c, image: ` + busybox + `, command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	if got := s.exec("p", "cat /v/ca.pem"); got != first {
		s.Errorf("anchors:\n%s", got)
	}
	own, err := tls.X509KeyPair([]byte(s.exec("p", "cat /v/chain.pem")), []byte(s.exec("p", "cat /v/key.pem")))
	if err != nil {
		s.Error(err)
	} else if cert, err := x509.ParseCertificate(own.Certificate[0]); err != nil || cert.CheckSignatureFrom(ca) != nil {
		s.Errorf("the certificate: %v", err)
	}
	s.contains(s.exec("p", "cat /v/bundle.pem"), "BEGIN PRIVATE KEY", "BEGIN CERTIFICATE")
	s.apply(bundle(second))
	s.eventually(5*time.Second, func() error {
		if got := s.exec("p", "cat /v/ca.pem"); got != second {
			return errors.New("still the old anchors:\n" + got)
		}
		return nil
	})
	s.do("delete", "pod", "p")
}
