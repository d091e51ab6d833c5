package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// minExpiration is the minimum certificate lifetime that a request may specify, in seconds.
const minExpiration = 600

// usages are the key usages that a request may specify, sorted as in upstream's error message.
var usages = func() []string {
	all := []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
		certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
		certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	}
	names := make([]string, len(all))
	for i, u := range all {
		names[i] = string(u)
	}
	slices.Sort(names)
	return names
}()

// permanentConditions are the condition types that cannot be removed and must have status True.
var permanentConditions = []certificatesv1.RequestConditionType{
	certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
}

// endpoint is the endpoint by which a client updates a signing request: the object itself or one of
// its subresources status and approval.
type endpoint int

const (
	objectEndpoint endpoint = iota
	statusEndpoint
	approvalEndpoint
)

// ParseRequest parses spec.request of a CertificateSigningRequest: a PKCS#10 request in a PEM
// block. It does not check the signature.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// checkSigningRequest validates r. old is the stored object, or nil on create. Kinds of errors that
// old has as well are ignored, because they could be created in the past.
func checkSigningRequest(r, old csr) field.ErrorList {
	var e validate.Errors
	spec := field.NewPath("spec")
	req, err := ParseRequest(r.Spec.Request)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		e.Invalid(spec.Child("request"), r.Spec.Request, err.Error())
	}
	if len(r.Spec.Usages) == 0 {
		e.Required(spec.Child("usages"), "")
	}
	checkUsages(&e, r, old)
	if r.Spec.SignerName == LegacyUnknownSigner && (old == nil || old.Spec.SignerName != LegacyUnknownSigner) {
		e.Invalid(spec.Child("signerName"), r.Spec.SignerName, "the legacy signerName is not allowed via this API version")
	} else {
		e.SignerName(spec.Child("signerName"), r.Spec.SignerName)
	}
	if s := r.Spec.ExpirationSeconds; s != nil && *s < minExpiration {
		e.Invalid(spec.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)")
	}
	checkConditions(&e, r, old)
	if old != nil && (bytes.Equal(r.Status.Certificate, old.Status.Certificate) || checkCertificates(old.Status.Certificate) != nil) {
		return e.List
	}
	if err := checkCertificates(r.Status.Certificate); err != nil {
		e.Invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error())
	}
	return e.List
}

// checkUsages checks that the usages are known and unique. Both checks are skipped if the stored object old violates
// them. old is nil for a new object.
func checkUsages(e *validate.Errors, r, old csr) {
	at := field.NewPath("spec", "usages")
	unknown := func(u certificatesv1.KeyUsage) bool { return !slices.Contains(usages, string(u)) }
	if old == nil || !slices.ContainsFunc(old.Spec.Usages, unknown) {
		for i, u := range r.Spec.Usages {
			if unknown(u) {
				e.Add(field.ErrorList{field.NotSupported(at.Index(i), u, usages)})
			}
		}
	}
	if old == nil || !repeats(old.Spec.Usages, func(u certificatesv1.KeyUsage) certificatesv1.KeyUsage { return u }) {
		for i, u := range r.Spec.Usages {
			if slices.Contains(r.Spec.Usages[:i], u) {
				e.Duplicate(at.Index(i), u)
			}
		}
	}
}

// repeats reports whether two elements of a list have the same key.
func repeats[T any, K comparable](list []T, key func(T) K) bool {
	seen := make(map[K]bool, len(list))
	for _, v := range list {
		if seen[key(v)] {
			return true
		}
		seen[key(v)] = true
	}
	return false
}

// checkConditions validates the conditions of a request. Types are required and unique, Approved and Denied exclude
// each other, and permanent conditions must be True. A rule about types is not checked if the stored object old
// violates it. old is nil for a new object.
func checkConditions(e *validate.Errors, r, old csr) {
	typeOf := func(c certificatesv1.CertificateSigningRequestCondition) certificatesv1.RequestConditionType {
		return c.Type
	}
	mayBoth, mayRepeat, mayLackType := false, false, false
	if old != nil {
		mayBoth = len(conditions(old, certificatesv1.CertificateApproved)) > 0 && len(conditions(old, certificatesv1.CertificateDenied)) > 0
		mayRepeat = repeats(old.Status.Conditions, typeOf)
		mayLackType = len(conditions(old, "")) > 0
	}
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range r.Status.Conditions {
		at := field.NewPath("status", "conditions").Index(i)
		if c.Type == "" && !mayLackType {
			e.Required(at.Child("type"), "")
		}
		allowed := []string{string(corev1.ConditionFalse), string(corev1.ConditionTrue), string(corev1.ConditionUnknown)}
		if slices.Contains(permanentConditions, c.Type) {
			allowed = []string{string(corev1.ConditionTrue)}
		}
		switch {
		case c.Status == "":
			e.Required(at.Child("status"), "")
		case !slices.Contains(allowed, string(c.Status)):
			e.Add(field.ErrorList{field.NotSupported(at.Child("status"), c.Status, allowed)})
		}
		if seen[c.Type] && !mayRepeat {
			e.Duplicate(at.Child("type"), c.Type)
		}
		seen[c.Type] = true
	}
	if !mayBoth && seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] {
		const approved, denied = `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`
		e.Declared(field.Invalid(field.NewPath("status", "conditions"), "{"+approved+", "+denied+"}",
			"must specify at most one of: `"+approved+"`, `"+denied+"`"))
	}
}

// checkCertificates checks that data, the issued certificate of a request, consists of PEM-encoded
// certificates without PEM headers. Empty data is valid.
func checkCertificates(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	blocks := 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != blockType {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		blocks++
	}
	if blocks == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

// checkUpdate validates an update by the endpoint by. Only the subresource approval may add the
// conditions Approved and Denied, and only status may set the certificate, so that the permissions
// for both can be granted separately.
func checkUpdate(r, old csr, by endpoint) field.ErrorList {
	e := validate.Errors{List: checkSigningRequest(r, old)}
	at := field.NewPath("status", "conditions")
	for _, t := range permanentConditions {
		if len(conditions(r, t)) < len(conditions(old, t)) {
			e.Forbidden(at, fmt.Sprintf("updates may not remove a condition of type %q", t))
		}
	}
	if by != approvalEndpoint {
		for _, t := range permanentConditions[:2] {
			was, is := conditions(old, t), conditions(r, t)
			switch {
			case len(is) < len(was): // reported above
			case len(is) > len(was):
				e.Forbidden(at, fmt.Sprintf("updates may not add a condition of type %q", t))
			case !apiequality.Semantic.DeepEqual(was, is):
				e.Forbidden(at, fmt.Sprintf("updates may not modify a condition of type %q\n%v", t, diff.Diff(was, is)))
			}
		}
	}
	if !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		at := field.NewPath("status", "certificate")
		switch {
		case by != statusEndpoint:
			e.Forbidden(at, "updates may not set certificate content")
		case len(old.Status.Certificate) > 0:
			e.Forbidden(at, "updates may not modify existing certificate content")
		}
	}
	return e.List
}
