package control

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// CSRCondition returns the condition of type t of a CertificateSigningRequest, or nil.
func CSRCondition(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequestCondition {
	for i := range csr.Status.Conditions {
		if csr.Status.Conditions[i].Type == t {
			return &csr.Status.Conditions[i]
		}
	}
	return nil
}

// CheckKubeletClient returns an error with the reason if a request is not valid for a client certificate of a kubelet.
// req is the decoded request of a CertificateSigningRequest and usages its key usages.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers
func CheckKubeletClient(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkKubeletSubject(req); err != nil {
		return err
	}
	switch {
	case len(req.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(req.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(req.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's words, shown in conditions
	case len(req.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	return checkUsages(usages, certificatesv1.UsageClientAuth)
}

// CheckKubeletServing returns an error with the reason if a request is not valid for a serving certificate of a
// kubelet. req is the decoded request of a CertificateSigningRequest and usages its key usages.
func CheckKubeletServing(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkKubeletSubject(req); err != nil {
		return err
	}
	switch {
	case len(req.DNSNames) == 0 && len(req.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(req.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // as above
	case len(req.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	return checkUsages(usages, certificatesv1.UsageServerAuth)
}

// checkKubeletSubject returns an error unless the subject of the request is that of a node.
func checkKubeletSubject(req *x509.CertificateRequest) error {
	if !slices.Equal(req.Subject.Organization, []string{"system:nodes"}) {
		return errors.New("subject organization is not system:nodes")
	}
	if !strings.HasPrefix(req.Subject.CommonName, "system:node:") {
		return errors.New("subject common name does not begin with system:node:") //nolint:staticcheck // upstream's words
	}
	return nil
}

// checkUsages returns an error unless usages are digital signature and auth, optionally with key encipherment, which
// only RSA keys need.
func checkUsages(usages []certificatesv1.KeyUsage, auth certificatesv1.KeyUsage) error {
	needed := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, auth}
	for _, u := range needed {
		if !slices.Contains(usages, u) {
			return badUsages(auth)
		}
	}
	for _, u := range usages {
		if !slices.Contains(needed, u) && u != certificatesv1.UsageKeyEncipherment {
			return badUsages(auth)
		}
	}
	return nil
}

// badUsages returns upstream's error for a certificate request whose key usages are not those for auth, the client or
// server authentication.
func badUsages(auth certificatesv1.KeyUsage) error {
	return fmt.Errorf("usages did not match [digital signature %s] or [key encipherment digital signature %s]", auth, auth)
}
