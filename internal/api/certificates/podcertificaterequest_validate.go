package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Limits of pod certificates and their requests.
const (
	minPodExpiration        = 60 * 60           // seconds
	maxPodExpiration        = 91 * 24 * 60 * 60 // seconds
	maxKubernetesExpiration = 24 * 60 * 60      // in seconds, for signers of Kubernetes
	maxStubRequest          = 10 << 10          // bytes
	maxCertificateChain     = 100 << 10         // bytes
	maxUID                  = 128               // bytes
	refreshMargin           = 10 * time.Minute
	clockSkew               = 5 * time.Minute
)

// isKubernetesSigner reports whether the name of a signer is in a domain of Kubernetes.
func isKubernetesSigner(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
}

// checkPodRequest validates a new PodCertificateRequest. For signers of kubernetes.io and its subdomains, the maximum
// expiration is shorter.
func checkPodRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	var e validate.Errors
	spec := field.NewPath("spec")
	e.SignerName(spec.Child("signerName"), r.Spec.SignerName)
	if r.Spec.UnverifiedUserAnnotations != nil {
		e.UserAnnotations(spec.Child("unverifiedUserAnnotations"), r.Spec.UnverifiedUserAnnotations)
	}
	e.InvalidAll(spec.Child("podName"), r.Spec.PodName, apivalidation.NameIsDNSSubdomain(r.Spec.PodName, false))
	uid := func(name, value string) {
		switch {
		case value == "":
			e.Invalid(spec.Child(name), value, "must not be empty")
		case len(value) > maxUID:
			e.Add(field.ErrorList{field.TooLong(spec.Child(name), value, maxUID)})
		}
	}
	uid("podUID", string(r.Spec.PodUID))
	e.InvalidAll(spec.Child("serviceAccountName"), r.Spec.ServiceAccountName, apivalidation.ValidateServiceAccountName(r.Spec.ServiceAccountName, false))
	uid("serviceAccountUID", string(r.Spec.ServiceAccountUID))
	e.InvalidAll(spec.Child("nodeName"), string(r.Spec.NodeName), apivalidation.NameIsDNSSubdomain(string(r.Spec.NodeName), false))
	uid("nodeUID", string(r.Spec.NodeUID))
	if r.Spec.MaxExpirationSeconds == nil {
		e.Required(spec.Child("maxExpirationSeconds"), "must be set")
		return e.List
	}
	most := int32(maxPodExpiration)
	if isKubernetesSigner(r.Spec.SignerName) {
		most = maxKubernetesExpiration
	}
	if s := *r.Spec.MaxExpirationSeconds; s < minPodExpiration || s > most {
		e.Invalid(spec.Child("maxExpirationSeconds"), r.Spec.MaxExpirationSeconds, fmt.Sprintf("must be in the range [%d, %d]", minPodExpiration, most))
	}
	if len(r.Spec.StubPKCS10Request) == 0 {
		// The other two fields belong to older API versions.
		e.Invalid(spec, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")
		return e.List
	}
	checkStub(&e, r.Spec.StubPKCS10Request, spec.Child("stubPKCS10Request"))
	return e.List
}

// checkStub validates stub, the DER-encoded PKCS#10 request that contains the pod's public key: the
// key must be of a supported type, and the signature must prove the possession of the private key.
func checkStub(e *validate.Errors, stub []byte, at *field.Path) {
	if len(stub) > maxStubRequest {
		e.Add(field.ErrorList{field.TooLong(at, stub, maxStubRequest)})
		return
	}
	req, err := x509.ParseCertificateRequest(stub)
	if err != nil {
		e.Invalid(at, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		return
	}
	switch pub := req.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if pub.Curve != elliptic.P256() && pub.Curve != elliptic.P384() && pub.Curve != elliptic.P521() {
			e.Invalid(at, "curve "+pub.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")
			return
		}
	case *rsa.PublicKey:
		if bits := pub.Size() * 8; bits != 3072 && bits != 4096 {
			e.Invalid(at, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
			return
		}
	default:
		e.Invalid(at, field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
		return
	}
	if err := req.CheckSignature(); err != nil {
		e.Invalid(at, field.OmitValueType{}, "invalid signature")
	}
}

// checkPodRequestStatus validates an update of the status. The status may only change when the request is issued,
// denied or failed, and never after that. These three conditions exclude each other.
func checkPodRequestStatus(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	var e validate.Errors
	status := field.NewPath("status")
	known := 0
	for i, c := range r.Status.Conditions {
		// The dot before the index is upstream's error path.
		at := status.Child("conditions.").Index(i)
		if !slices.Contains(outcomes, c.Type) {
			e.Add(field.ErrorList{field.NotSupported(at.Child("type"), c.Type, outcomes)})
			continue
		}
		if known++; known > 1 {
			e.Invalid(at.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`)
		}
		if c.Status != metav1.ConditionTrue {
			e.Add(field.ErrorList{field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue})})
		}
	}
	e.Add(validate.Conditions(r.Status.Conditions, status.Child("conditions")))
	if len(e.List) > 0 {
		return e.List
	}
	if outcome(old) != "" {
		if !apiequality.Semantic.DeepEqual(r.Status, old.Status) {
			e.Invalid(status, field.OmitValueType{}, "immutable after PodCertificateRequest is issued, denied, or failed")
		}
		return e.List
	}
	switch outcome(r) {
	case certificatesv1.PodCertificateRequestConditionTypeIssued:
		checkIssued(&e, r, old)
	case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
		if !apiequality.Semantic.DeepEqual(r.Status, certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions}) {
			e.Invalid(status, field.OmitValueType{}, "non-condition status fields must be empty when denying or failing the PodCertificateRequest")
		}
	default:
		if !apiequality.Semantic.DeepEqual(r.Status, old.Status) {
			e.Invalid(status, field.OmitValueType{}, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
		}
	}
	return e.List
}

// checkIssued checks that the certificate chain and the times in the status of r, which a signer
// has just issued, match the request in old. It stops at the first error that makes further checks
// pointless.
func checkIssued(e *validate.Errors, r, old *certificatesv1.PodCertificateRequest) {
	status := field.NewPath("status")
	chain := status.Child("certificateChain")
	s := &r.Status
	if len(s.CertificateChain) > maxCertificateChain {
		e.Add(field.ErrorList{field.TooLong(chain, s.CertificateChain, maxCertificateChain)})
		return
	}
	block, rest := pem.Decode([]byte(s.CertificateChain))
	if block == nil {
		e.Invalid(chain, s.CertificateChain, "issued certificate chain must contain at least one certificate")
		return
	}
	if block.Type != blockType {
		e.Invalid(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
		return
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		e.Invalid(chain, s.CertificateChain, "leaf certificate does not parse as valid X.509")
		return
	}
	checkLeafNames(e, leaf, chain)
	req, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		e.Invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		return
	}
	if key, ok := req.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(leaf.PublicKey) {
		e.Invalid(chain, s.CertificateChain, "leaf certificate was not issued to the requested public key")
		return
	}
	before := len(e.List)
	if s.NotBefore == nil {
		e.Required(status.Child("notBefore"), "must be present and consistent with the issued certificate")
	}
	if s.NotAfter == nil {
		e.Required(status.Child("notAfter"), "must be present and consistent with the issued certificate")
	}
	if s.BeginRefreshAt == nil {
		e.Required(status.Child("beginRefreshAt"), "must be present and in the range [notbefore+10min, notafter-10min]")
	}
	if len(e.List) > before {
		return
	}
	if !checkTimes(e, r, leaf) {
		return
	}
	for {
		if block, rest = pem.Decode(rest); block == nil {
			return
		}
		if block.Type != blockType {
			e.Invalid(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTFICATE PEM blocks")
			return
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			e.Invalid(chain, s.CertificateChain, "intermediate certificate does not parse as valid X.509")
			return
		}
	}
}

// checkLeafNames validates the syntax of the DNS names and email addresses of an issued certificate.
func checkLeafNames(e *validate.Errors, leaf *x509.Certificate, at *field.Path) {
	for _, name := range leaf.DNSNames {
		if name == "" {
			e.Invalid(at, name, "leaf certificate should not contain empty DNSName")
		}
		if strings.Contains(name, "..") {
			e.Invalid(at, name, "leaf certificate's DNSName should not contain '..'")
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			e.Invalid(at, name, "leaf certificate's DNSName should not start or end with '.'")
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			e.Invalid(at, address, "leaf certificate should not contain invalid EmailAddress")
		}
	}
}

// checkTimes checks that the times in the status are those of the certificate, that the certificate
// is valid from now on for at most the requested lifetime, and that it is refreshed at least 10
// minutes before it expires. It reports whether there is no error. All times in the status must be
// set.
func checkTimes(e *validate.Errors, r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate) bool {
	status := field.NewPath("status")
	from, until, refresh := r.Status.NotBefore.Time, r.Status.NotAfter.Time, r.Status.BeginRefreshAt.Time
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	switch {
	case !from.Equal(leaf.NotBefore):
		e.Invalid(status.Child("notBefore"), from, "must be set to the NotBefore time encoded in the leaf certificate")
	case time.Since(from).Abs() > clockSkew:
		e.Invalid(status.Child("notBefore"), from, "must be set to within 5 minutes of kube-apiserver's current time")
	case !until.Equal(leaf.NotAfter):
		e.Invalid(status.Child("notAfter"), until, "must be set to the NotAfter time encoded in the leaf certificate")
	case life < time.Hour:
		e.Invalid(status.Child("certificateChain"), life, "leaf certificate lifetime must be >= 1 hour")
	case r.Spec.MaxExpirationSeconds != nil && life > time.Duration(*r.Spec.MaxExpirationSeconds)*time.Second:
		e.Invalid(status.Child("certificateChain"), life, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", *r.Spec.MaxExpirationSeconds))
	case refresh.Before(from.Add(refreshMargin)):
		e.Invalid(status.Child("beginRefreshAt"), refresh, "must be at least 10 minutes after status.notBefore")
	case refresh.After(until.Add(-refreshMargin)):
		e.Invalid(status.Child("beginRefreshAt"), refresh, "must be at least 10 minutes before status.notAfter")
	default:
		return true
	}
	return false
}
