// Package certificates defines the kinds of certificates.k8s.io/v1, one file per kind.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
package certificates

import "hyperkube/internal/api"

const (
	group   = "certificates.k8s.io"
	version = "v1"
)

// LegacyUnknownSigner is the signer name of requests without a signer in the removed v1beta1 API.
// New requests must not use it.
const LegacyUnknownSigner = "kubernetes.io/legacy-unknown"

// blockType is the PEM block type of certificates.
const blockType = "CERTIFICATE"

// Resources returns the definitions of the resources of the API group certificates.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		signingRequest().Resource(),
		clusterTrustBundle().Resource(),
		podCertificateRequest().Resource(),
	}
}
