package podrefs

import corev1 "k8s.io/api/core/v1"

// FirstAPIReference returns the first kind of API object that a pod depends on, as named in
// upstream's error message, or an empty string if there is none. With it, the kubelet rejects
// static pods and the NodeRestriction admission plugin rejects mirror pods that refer to API
// objects.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
func FirstAPIReference(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	found := map[Kind]bool{}
	for kind := range Of(pod) {
		found[kind] = true
	}
	switch {
	case found[Secret]:
		return "secrets"
	case found[ConfigMap]:
		return "configmaps"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		if what := apiSource(&pod.Spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

// apiSource returns the API object that a volume depends on, except Secrets and ConfigMaps, or an
// empty string if there is none.
func apiSource(v *corev1.VolumeSource) string {
	switch {
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected == nil:
		return ""
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)"
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles"
		case s.PodCertificate != nil:
			return "podcertificates"
		}
	}
	return ""
}
