package podrefs

import corev1 "k8s.io/api/core/v1"

// First names a kind of objects of the API that a pod cannot do without, in the
// words that upstream tells it with; empty: the pod refers to none, and so can run
// without an API server.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
func First(pod *corev1.Pod) string {
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
		if what := source(&pod.Spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

// source names what a volume has from the API besides Secrets and ConfigMaps; empty:
// nothing.
func source(v *corev1.VolumeSource) string {
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
