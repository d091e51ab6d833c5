package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCertificates: a user's certificate is approved manually and signed by the cluster, and a
// kubelet's certificate is approved automatically.
func TestCertificates(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	request := func(name, signer string, subject pkix.Name, as ...string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		if err != nil {
			t.Fatal(err)
		}
		data := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		manifest := fmt.Sprintf(`---
{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: %s},
			spec: {request: %s, signerName: %s, usages: [client auth, digital signature]}}`, name, data, signer)
		if out, err := s.run(manifest, append([]string{"create", "-f", "-"}, as...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { _, _ = s.run("", "delete", "csr", name) })
	}
	issued := func(name string) *x509.Certificate {
		var cert *x509.Certificate
		s.eventually(20*time.Second, func() error {
			r, err := s.kube.CertificatesV1().CertificateSigningRequests().Get(s.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			block, _ := pem.Decode(r.Status.Certificate)
			if block == nil {
				return errors.New(name + " is not signed")
			}
			cert, err = x509.ParseCertificate(block.Bytes)
			return err
		})
		return cert
	}

	user := s.name + "-jane"
	request(user, "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "jane"})
	s.contains(s.do("get", "csr", user), "Pending")
	s.do("certificate", "approve", user)
	if cert := issued(user); cert.Subject.CommonName != "jane" {
		t.Error(cert.Subject)
	}
	s.contains(s.do("get", "csr", user), "Approved,Issued")

	for role, binding := range map[string]string{
		"system:node-bootstrapper": s.name + "-ask",
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient": s.name + "-node",
	} {
		s.do("create", "clusterrolebinding", binding, "--clusterrole="+role, "--group="+s.name)
		t.Cleanup(func() { _, _ = s.run("", "delete", "clusterrolebinding", binding) })
	}
	node := s.name + "-node"
	request(node, "kubernetes.io/kube-apiserver-client-kubelet",
		pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		"--as=system:bootstrap:x", "--as-group="+s.name, "--as-group=system:authenticated")
	if cert := issued(node); cert.Subject.CommonName != "system:node:"+node {
		t.Error(cert.Subject)
	}
}

// TestClaims: a pod's claim is created from a template and deleted with the pod.
func TestClaims(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: nothing.example.com}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: g, resourceClaimTemplateName: one}]
  containers: [{name: c, image: hyperkube, resources: {claims: [{name: g}]}}]
`)
	claims := func(n int) func() error {
		return func() error {
			all, err := s.kube.ResourceV1().ResourceClaims(s.name).List(s.ctx, metav1.ListOptions{})
			if err == nil && len(all.Items) != n {
				err = fmt.Errorf("%d claims", len(all.Items))
			}
			return err
		}
	}
	s.eventually(20*time.Second, claims(1))
	s.contains(s.do("get", "resourceclaims"), "pending")
	s.do("delete", "pod", "p", "--now")
	s.eventually(20*time.Second, claims(0))
}
