package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// volumeFile is the path of a file in a volume. of describes the source of the file for warnings,
// such as ConfigMap "a"; it is empty if the volume has only one source.
type volumeFile struct{ path, of string }

// String returns the quoted path, with the source in parentheses if it is known.
func (p volumeFile) String() string {
	if p.of == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.of)
}

// overlaps warns about files that have the same path as another file in the same volume or are
// below it, so that one hides the other. It also warns about empty sources of projected volumes.
func (w *warner) overlaps() {
	for i := range w.spec.Volumes {
		v := &w.spec.Volumes[i]
		if s := v.ConfigMap; s != nil {
			w.overlapping(v.Name, fmt.Sprintf("ConfigMap %q", s.Name), keyFiles(s.Items, ""))
		}
		if s := v.Secret; s != nil {
			w.overlapping(v.Name, fmt.Sprintf("Secret %q", s.SecretName), keyFiles(s.Items, ""))
		}
		if s := v.DownwardAPI; s != nil {
			w.overlapping(v.Name, "DownwardAPI", downwardFiles(s.Items, ""))
		}
		if s := v.Projected; s != nil {
			var all []volumeFile
			for j := range s.Sources {
				if s.Sources[j] == (corev1.VolumeProjection{}) {
					w.list = append(w.list, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
				}
				all = append(all, projectedFiles(&s.Sources[j])...)
			}
			w.overlapping(v.Name, "Projected", all)
		}
	}
}

// overlapping adds a warning for each pair of files of which one hides the other. kind describes the source of the
// volume. It removes trailing slashes from the paths in files.
func (w *warner) overlapping(volume, kind string, files []volumeFile) {
	for i := range files {
		files[i].path = strings.TrimRight(files[i].path, "/")
		is := files[i]
		if is.path == "" {
			continue
		}
		for _, other := range files[:i] {
			if other.path != "" && (strings.HasPrefix(other.path+"/", is.path+"/") || strings.HasPrefix(is.path+"/", other.path+"/")) {
				w.list = append(w.list, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", volume, kind, is, other))
			}
		}
	}
}

func keyFiles(items []corev1.KeyToPath, of string) []volumeFile {
	files := make([]volumeFile, len(items))
	for i := range items {
		files[i] = volumeFile{items[i].Path, of}
	}
	return files
}

func downwardFiles(items []corev1.DownwardAPIVolumeFile, of string) []volumeFile {
	files := make([]volumeFile, len(items))
	for i := range items {
		files[i] = volumeFile{items[i].Path, of}
	}
	return files
}

// projectedFiles returns the files of one source of a projected volume, as far as its spec contains their paths.
func projectedFiles(s *corev1.VolumeProjection) []volumeFile {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return keyFiles(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return keyFiles(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return downwardFiles(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []volumeFile{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		if name == nil {
			return nil
		}
		return []volumeFile{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case s.PodCertificate != nil:
		var files []volumeFile
		for _, f := range []volumeFile{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		} {
			if f.path != "" {
				files = append(files, f)
			}
		}
		return files
	}
	return nil
}
