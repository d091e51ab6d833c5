// Package certificates describes the kinds of certificates.k8s.io/v1, one file a
// kind.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
package certificates

import "hyperkube/internal/api"

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
