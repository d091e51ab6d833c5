package authz

import (
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
	for i := range spec.ImagePullSecrets {
		add(refSecret, spec.ImagePullSecrets[i].Name)
	}
	env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) {
		for i := range vars {
			if v := vars[i].ValueFrom; v != nil {
				if v.SecretKeyRef != nil {
					add(refSecret, v.SecretKeyRef.Name)
				}
				if v.ConfigMapKeyRef != nil {
					add(refConfigMap, v.ConfigMapKeyRef.Name)
				}
			}
		}
		for i := range from {
			if from[i].SecretRef != nil {
				add(refSecret, from[i].SecretRef.Name)
			}
			if from[i].ConfigMapRef != nil {
				add(refConfigMap, from[i].ConfigMapRef.Name)
			}
		}
	}
	for i := range spec.InitContainers {
		env(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		env(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		env(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range spec.Volumes {
		volumeRefs(pod, &spec.Volumes[i], add)
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

func volumeRefs(pod *corev1.Pod, v *corev1.Volume, add func(refKind, string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			add(refSecret, r.Name)
		}
	}
	switch {
	case v.Secret != nil:
		add(refSecret, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(refConfigMap, v.ConfigMap.Name)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if s := v.Projected.Sources[i].Secret; s != nil {
				add(refSecret, s.Name)
			}
			if c := v.Projected.Sources[i].ConfigMap; c != nil {
				add(refConfigMap, c.Name)
			}
		}
	case v.PersistentVolumeClaim != nil:
		add(refClaim, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		add(refClaim, pod.Name+"-"+v.Name)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		add(refSecret, v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	}
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
