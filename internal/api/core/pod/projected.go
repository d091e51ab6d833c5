package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// checkProjected validates a projected volume, whose sources must not contain the same files.
func checkProjected(e *validate.Errors, v *corev1.ProjectedVolumeSource, at *field.Path) {
	e.FileMode(at.Child("defaultMode"), v.DefaultMode)
	var paths map[string]bool
	// claim reserves a path in the volume. If another source has already reserved it, claim adds an
	// error for value.
	claim := func(path, value string) {
		if path == "" {
			return
		}
		if paths == nil {
			paths = map[string]bool{}
		}
		if paths[path] {
			e.Invalid(at, value, "conflicting duplicate paths")
		}
		paths[path] = true
	}
	for i := range v.Sources {
		src, p, kinds := &v.Sources[i], at.Child("sources").Index(i), 0
		if s := src.Secret; s != nil {
			kinds++
			checkFiles(e, "name", s.Name, nil, s.Items, p.Child("secret"))
			for _, item := range s.Items {
				claim(item.Path, s.Name)
			}
		}
		if s := src.ConfigMap; s != nil {
			kinds++
			checkFiles(e, "name", s.Name, nil, s.Items, p.Child("configMap"))
			for _, item := range s.Items {
				claim(item.Path, s.Name)
			}
		}
		if s := src.DownwardAPI; s != nil {
			kinds++
			for i := range s.Items {
				checkDownwardFile(e, &s.Items[i], p.Child("downwardAPI"))
				claim(s.Items[i].Path, s.Items[i].Path)
			}
		}
		if s := src.ServiceAccountToken; s != nil {
			kinds++
			checkTokenProjection(e, s, at, p.Child("serviceAccountToken"))
		}
		if s := src.ClusterTrustBundle; s != nil {
			kinds++
			checkTrustBundle(e, s, p.Child("clusterTrustBundle"))
			claim(s.Path, s.Path)
		}
		if s := src.PodCertificate; s != nil {
			kinds++
			checkPodCertificate(e, s, p.Child("podCertificate"))
			for _, path := range []string{s.CredentialBundlePath, s.KeyPath, s.CertificateChainPath} {
				claim(path, path)
			}
		}
		if kinds > 1 {
			e.Forbidden(p, "may not specify more than 1 volume type per source")
		}
	}
}

func checkTokenProjection(e *validate.Errors, s *corev1.ServiceAccountTokenProjection, volume, at *field.Path) {
	if s.ExpirationSeconds != nil {
		if *s.ExpirationSeconds < 10*60 {
			e.Invalid(at.Child("expirationSeconds"), *s.ExpirationSeconds, "may not specify a duration less than 10 minutes")
		}
		if *s.ExpirationSeconds > 1<<32 {
			e.Invalid(at.Child("expirationSeconds"), *s.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds")
		}
	}
	// In upstream, the path is that of the volume.
	if s.Path == "" {
		e.Required(volume.Child("path"), "")
	} else {
		e.NonReservedPath(volume.Child("path"), s.Path)
	}
}

func checkTrustBundle(e *validate.Errors, s *corev1.ClusterTrustBundleProjection, at *field.Path) {
	switch {
	case s.Name != nil && s.SignerName != nil:
		e.Invalid(at, s, "only one of name and signerName may be used")
	case s.Name != nil:
		if *s.Name == "" {
			e.Required(at.Child("name"), "must be a valid object name")
		}
		for _, msg := range apivalidation.NameIsDNSSubdomain(strings.ReplaceAll(*s.Name, ":", "."), false) {
			e.Invalid(at.Child("name"), *s.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg))
		}
		if s.LabelSelector != nil {
			e.Invalid(at.Child("labelSelector"), s.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case s.SignerName != nil:
		if *s.SignerName == "" {
			e.Required(at.Child("signerName"), "must be a valid signer name")
		}
		e.SignerName(at.Child("signerName"), *s.SignerName)
		e.Add(metavalidation.ValidateLabelSelector(s.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	default:
		e.Required(at, "either name or signerName must be specified")
	}
	if s.Path == "" {
		e.Required(at.Child("path"), "")
	}
	e.NonReservedPath(at.Child("path"), s.Path)
}

var podCertificateKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func checkPodCertificate(e *validate.Errors, s *corev1.PodCertificateProjection, at *field.Path) {
	e.SignerName(at.Child("signerName"), s.SignerName)
	e.UserAnnotations(at.Child("userAnnotations"), s.UserAnnotations)
	if !slices.Contains(podCertificateKeyTypes, s.KeyType) {
		e.Add(field.ErrorList{field.NotSupported(at.Child("keyType"), s.KeyType, podCertificateKeyTypes)})
	}
	if s.MaxExpirationSeconds != nil {
		most := int32(91 * 24 * 60 * 60)
		if strings.HasPrefix(s.SignerName, "kubernetes.io/") {
			most = 24 * 60 * 60
		}
		const least = 60 * 60
		switch is := *s.MaxExpirationSeconds; {
		case is < least:
			e.Invalid(at.Child("maxExpirationSeconds"), is, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", least))
		case is > most:
			e.Invalid(at.Child("maxExpirationSeconds"), is, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
		}
	}
	paths := 0
	for _, file := range [...]struct{ name, path string }{
		{"credentialBundlePath", s.CredentialBundlePath},
		{"keyPath", s.KeyPath},
		{"certificateChainPath", s.CertificateChainPath},
	} {
		if file.path != "" {
			paths++
			e.NonReservedPath(at.Child(file.name), file.path)
		}
	}
	if paths == 0 {
		e.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}
