package authz

import (
	"hyperkube/internal/podrefs"

	corev1 "k8s.io/api/core/v1"
)

// ref names an object that a pod of a node refers to.
type ref struct {
	kind            refKind
	namespace, name string
}

type refKind uint8

const (
	refPod refKind = iota
	refSecret
	refConfigMap
	refClaim
	refServiceAccount
	refResourceClaim
)

// podRefs lists what the kubelet reads for a pod, but for the pod itself. A
// reference may be listed twice.
func podRefs(pod *corev1.Pod) []ref {
	var refs []ref
	// Mirror pods show what a node runs by itself. They may not refer to
	// anything: whoever holds a node's credentials could make one that does.
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

// volumeSecrets lists the Secrets that a persistent volume refers to. Where
// none is named for the namespace it is that of the claim.
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
