package authz

import (
	"hyperkube/internal/api/podrefs"

	corev1 "k8s.io/api/core/v1"
)

// ref identifies an object to which a pod refers, such as a Secret that it mounts. The kubelet of
// the pod's node may read the object.
type ref struct {
	kind            refKind
	namespace, name string
}

// refKind is the kind of an object that a pod refers to.
type refKind uint8

const (
	refPod refKind = iota
	refSecret
	refConfigMap
	refClaim
	refServiceAccount
	refResourceClaim
)

// podRefs returns the objects that a kubelet reads to run the pod, except for the pod itself. It
// may contain duplicates. It returns none for mirror pods.
func podRefs(pod *corev1.Pod) []ref {
	var refs []ref
	// Mirror pods represent static pods. Their references are ignored, because a client with a
	// node's credentials could create a mirror pod with any reference.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return refs
	}
	add := func(kind refKind, name string) {
		if name != "" {
			refs = append(refs, ref{kind, pod.Namespace, name})
		}
	}
	spec := &pod.Spec
	add(refServiceAccount, spec.ServiceAccountName)
	for kind, name := range podrefs.Of(pod) {
		switch kind {
		case podrefs.Secret:
			add(refSecret, name)
		case podrefs.ConfigMap:
			add(refConfigMap, name)
		case podrefs.Claim:
			add(refClaim, name)
		}
	}
	for i := range spec.ResourceClaims {
		if name := spec.ResourceClaims[i].ResourceClaimName; name != nil {
			add(refResourceClaim, *name)
		}
	}
	for i := range pod.Status.ResourceClaimStatuses {
		if name := pod.Status.ResourceClaimStatuses[i].ResourceClaimName; name != nil {
			add(refResourceClaim, *name)
		}
	}
	if ext := pod.Status.ExtendedResourceClaimStatus; ext != nil {
		add(refResourceClaim, ext.ResourceClaimName)
	}
	return refs
}

// volumeSecrets returns the Secrets to which a persistent volume refers. A reference without a
// namespace is in the namespace of the claim. A volume that is not bound has none.
func volumeSecrets(pv *corev1.PersistentVolume) []ref {
	if pv.Spec.ClaimRef == nil {
		return nil
	}
	var refs []ref
	add := func(namespace, name string) {
		if namespace == "" {
			namespace = pv.Spec.ClaimRef.Namespace
		}
		if name != "" {
			refs = append(refs, ref{refSecret, namespace, name})
		}
	}
	secret := func(r *corev1.SecretReference) {
		if r != nil {
			add(r.Namespace, r.Name)
		}
	}
	src := &pv.Spec.PersistentVolumeSource
	switch {
	case src.CSI != nil:
		secret(src.CSI.NodePublishSecretRef)
		secret(src.CSI.NodeStageSecretRef)
		secret(src.CSI.NodeExpandSecretRef)
	case src.AzureFile != nil:
		namespace := ""
		if src.AzureFile.SecretNamespace != nil {
			namespace = *src.AzureFile.SecretNamespace
		}
		add(namespace, src.AzureFile.SecretName)
	case src.CephFS != nil:
		secret(src.CephFS.SecretRef)
	case src.Cinder != nil:
		secret(src.Cinder.SecretRef)
	case src.FlexVolume != nil:
		secret(src.FlexVolume.SecretRef)
	case src.RBD != nil:
		secret(src.RBD.SecretRef)
	case src.ScaleIO != nil:
		secret(src.ScaleIO.SecretRef)
	case src.ISCSI != nil:
		secret(src.ISCSI.SecretRef)
	case src.StorageOS != nil:
		if r := src.StorageOS.SecretRef; r != nil {
			add(r.Namespace, r.Name)
		}
	}
	return refs
}
