package former

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/api/certificates"
)

// certificatesVersions returns the reader of CertificateSigningRequests in v1beta1, where the
// signer name and the usages were optional.
func certificatesVersions() []version {
	v1 := certificatesv1.SchemeGroupVersion
	return []version{
		{"CertificateSigningRequest", v1, certificatesv1beta1.SchemeGroupVersion, sameFields(func(now *certificatesv1.CertificateSigningRequest) error {
			if now.Spec.Usages == nil {
				now.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
			}
			if now.Spec.SignerName == "" {
				now.Spec.SignerName = certificates.LegacyUnknownSigner
			}
			for i := range now.Status.Conditions {
				if c := &now.Status.Conditions[i]; c.Status == "" {
					c.Status = corev1.ConditionTrue
				}
			}
			return nil
		})},
	}
}
