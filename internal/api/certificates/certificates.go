// Package certificates describes the kinds of certificates.k8s.io/v1, one file a
// kind.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
package certificates

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

const (
	group   = "certificates.k8s.io"
	version = "v1"
)

// LegacyUnknownSigner is the signer of requests that named none, in a version of
// the API that is gone. New requests may not name it.
const LegacyUnknownSigner = "kubernetes.io/legacy-unknown"

// blockType is the type of a certificate's PEM block.
const blockType = "CERTIFICATE"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		signingRequest().Resource(),
		clusterTrustBundle().Resource(),
		podCertificateRequest().Resource(),
	}
}

// The longest name of a signer: a namespace, a name and what joins them.
const (
	maxSignerPath = 253 + 63 + 1
	maxSignerName = 253 + 1 + maxSignerPath
)

// checkSignerName checks a name such as example.com/my-signer.
func checkSignerName(e *validate.Errors, name string, at *field.Path) {
	if name == "" {
		e.Required(at, "")
		return
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		e.Invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	e.InvalidAll(at, domain, validation.IsDNS1123Subdomain(domain))
	if !strings.Contains(domain, ".") {
		e.Invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	for part := range strings.SplitSeq(path, ".") {
		e.InvalidAll(at, part, validation.IsDNS1123Subdomain(part))
	}
	if len(path) > maxSignerPath {
		e.Add(field.ErrorList{field.TooLong(at, "", maxSignerName)})
	}
}
