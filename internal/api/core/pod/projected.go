package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkProjected validates a projected volume, whose sources must not contain the same files.
func (c *checker) checkProjected(v *corev1.ProjectedVolumeSource, at *field.Path) {
	c.FileMode(at.Child("defaultMode"), v.DefaultMode)
	var paths map[string]bool
	// claim reserves a path. value is the value of the error if the path is taken.
	claim := func(path, value string) {
		if path == "" {
			return
		}
		if paths == nil {
			paths = map[string]bool{}
		}
		if paths[path] {
			c.Invalid(at, value, "conflicting duplicate paths")
		}
		paths[path] = true
	}
	for i := range v.Sources {
		src, p, kinds := &v.Sources[i], at.Child("sources").Index(i), 0
		if s := src.Secret; s != nil {
			kinds++
			c.checkFiles("name", s.Name, nil, s.Items, p.Child("secret"))
			for _, item := range s.Items {
				claim(item.Path, s.Name)
			}
		}
		if s := src.ConfigMap; s != nil {
			kinds++
			c.checkFiles("name", s.Name, nil, s.Items, p.Child("configMap"))
			for _, item := range s.Items {
				claim(item.Path, s.Name)
			}
		}
		if s := src.DownwardAPI; s != nil {
			kinds++
			for i := range s.Items {
				c.checkDownwardFile(&s.Items[i], p.Child("downwardAPI"))
				claim(s.Items[i].Path, s.Items[i].Path)
			}
		}
		if s := src.ServiceAccountToken; s != nil {
			kinds++
			c.checkTokenProjection(s, at, p.Child("serviceAccountToken"))
		}
		if s := src.ClusterTrustBundle; s != nil {
			kinds++
			c.checkTrustBundle(s, p.Child("clusterTrustBundle"))
			claim(s.Path, s.Path)
		}
		if s := src.PodCertificate; s != nil {
			kinds++
			c.checkPodCertificate(s, p.Child("podCertificate"))
			for _, path := range []string{s.CredentialBundlePath, s.KeyPath, s.CertificateChainPath} {
				claim(path, path)
			}
		}
		if kinds > 1 {
			c.Forbidden(p, "may not specify more than 1 volume type per source")
		}
	}
}

func (c *checker) checkTokenProjection(s *corev1.ServiceAccountTokenProjection, volume, at *field.Path) {
	if s.ExpirationSeconds != nil {
		if *s.ExpirationSeconds < 10*60 {
			c.Invalid(at.Child("expirationSeconds"), *s.ExpirationSeconds, "may not specify a duration less than 10 minutes")
		}
		if *s.ExpirationSeconds > 1<<32 {
			c.Invalid(at.Child("expirationSeconds"), *s.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds")
		}
	}
	// In upstream, the path is that of the volume.
	if s.Path == "" {
		c.Required(volume.Child("path"), "")
	} else {
		c.NonReservedPath(volume.Child("path"), s.Path)
	}
}

func (c *checker) checkTrustBundle(s *corev1.ClusterTrustBundleProjection, at *field.Path) {
	switch {
	case s.Name != nil && s.SignerName != nil:
		c.Invalid(at, s, "only one of name and signerName may be used")
	case s.Name != nil:
		if *s.Name == "" {
			c.Required(at.Child("name"), "must be a valid object name")
		}
		for _, msg := range apivalidation.NameIsDNSSubdomain(strings.ReplaceAll(*s.Name, ":", "."), false) {
			c.Invalid(at.Child("name"), *s.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg))
		}
		if s.LabelSelector != nil {
			c.Invalid(at.Child("labelSelector"), s.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case s.SignerName != nil:
		if *s.SignerName == "" {
			c.Required(at.Child("signerName"), "must be a valid signer name")
		}
		c.SignerName(at.Child("signerName"), *s.SignerName)
		c.Add(metavalidation.ValidateLabelSelector(s.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	default:
		c.Required(at, "either name or signerName must be specified")
	}
	if s.Path == "" {
		c.Required(at.Child("path"), "")
	}
	c.NonReservedPath(at.Child("path"), s.Path)
}

var podCertificateKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func (c *checker) checkPodCertificate(s *corev1.PodCertificateProjection, at *field.Path) {
	c.SignerName(at.Child("signerName"), s.SignerName)
	c.UserAnnotations(at.Child("userAnnotations"), s.UserAnnotations)
	if !slices.Contains(podCertificateKeyTypes, s.KeyType) {
		c.Add(field.ErrorList{field.NotSupported(at.Child("keyType"), s.KeyType, podCertificateKeyTypes)})
	}
	if s.MaxExpirationSeconds != nil {
		most := int32(91 * 24 * 60 * 60)
		if strings.HasPrefix(s.SignerName, "kubernetes.io/") {
			most = 24 * 60 * 60
		}
		const least = 60 * 60
		switch is := *s.MaxExpirationSeconds; {
		case is < least:
			c.Invalid(at.Child("maxExpirationSeconds"), is, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", least))
		case is > most:
			c.Invalid(at.Child("maxExpirationSeconds"), is, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
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
			c.NonReservedPath(at.Child(file.name), file.path)
		}
	}
	if paths == 0 {
		c.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}
