// Package certificates describes the kinds of certificates.k8s.io/v1, one file a
// kind.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
package certificates

import (
	"fmt"
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
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		e.Add(field.ErrorList{field.TooLong(at, "", validation.DNS1123SubdomainMaxLength)})
	}
	checkSegments(e, at, domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		e.Invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	checkSegments(e, at, path, validation.IsDNS1123Subdomain)
	if len(name) > maxSignerName {
		e.Add(field.ErrorList{field.TooLong(at, "", maxSignerName)})
	}
}

// checkSegments tells of the first segment of a name that is wrong.
func checkSegments(e *validate.Errors, at *field.Path, name string, check func(string) []string) {
	for part := range strings.SplitSeq(name, ".") {
		msgs := check(part)
		for _, msg := range msgs {
			e.Invalid(at, name, fmt.Sprintf("validating label %q: %s", part, msg))
		}
		if len(msgs) > 0 {
			return
		}
	}
}
