package podrefs

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// everything returns a pod with a reference in every possible field, each to a different object.
func everything() *corev1.Pod {
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	env := func(prefix string) []corev1.EnvVar {
		return []corev1.EnvVar{
			{Name: "PLAIN", Value: "x"},
			{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *local(prefix + "-env-secret")}}},
			{Name: "C", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: *local(prefix + "-env-map")}}},
			{Name: "F", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		}
	}
	from := func(prefix string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *local(prefix + "-from-secret")}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: *local(prefix + "-from-map")}},
		}
	}
	pod := &corev1.Pod{}
	pod.Name = "pod"
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{*local("pull")}
	pod.Spec.InitContainers = []corev1.Container{{Env: env("init"), EnvFrom: from("init")}}
	pod.Spec.Containers = []corev1.Container{{Env: env("main"), EnvFrom: from("main")}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: env("debug"), EnvFrom: from("debug")}}}
	for _, s := range []corev1.VolumeSource{
		{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *local("volume-map")}},
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}},
		{Ephemeral: &corev1.EphemeralVolumeSource{}},
		{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}},
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}},
		{CephFS: &corev1.CephFSVolumeSource{SecretRef: local("ceph")}},
		{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}},
		{FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}},
		{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}},
		{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scaleio")}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}},
		{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{DownwardAPI: &corev1.DownwardAPIProjection{}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: *local("projected")}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: *local("projected-map")}},
		}}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: s})
	}
	return pod
}

func TestOf(t *testing.T) {
	want := map[Kind][]string{
		Secret: {"pull", "init-env-secret", "init-from-secret", "main-env-secret", "main-from-secret", "debug-env-secret", "debug-from-secret",
			"volume", "csi", "azure", "ceph", "cinder", "flex", "rbd", "scaleio", "iscsi", "storageos", "projected"},
		ConfigMap: {"init-env-map", "init-from-map", "main-env-map", "main-from-map", "debug-env-map", "debug-from-map", "volume-map", "projected-map"},
		Claim:     {"claim", "pod-v"},
	}
	got := map[Kind][]string{}
	total := 0
	for kind, name := range Of(everything()) {
		got[kind] = append(got[kind], name)
		total++
	}
	for kind, names := range want {
		if !slices.Equal(got[kind], names) {
			t.Errorf("%s: %v, want %v", kind, got[kind], names)
		}
		delete(got, kind)
	}
	if len(got) > 0 {
		t.Errorf("also %v", got)
	}

	// the iteration can stop at any element
	for stop := 1; stop <= total; stop++ {
		n := 0
		for range Of(everything()) {
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("stopped after %d, %d were yielded", stop, n)
		}
	}
}

func TestClaimName(t *testing.T) {
	named := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
	ephemeral := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	empty := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	pod := &corev1.Pod{}
	pod.Name = "p"
	for _, tt := range []struct {
		volume corev1.Volume
		want   string
	}{{named, "c"}, {ephemeral, "p-v"}, {empty, ""}} {
		if got := ClaimName(pod, &tt.volume); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.volume, got, tt.want)
		}
		pod.Spec.Volumes = []corev1.Volume{empty, tt.volume}
		if got := HasClaims(pod); got != (tt.want != "") {
			t.Errorf("with %+v: %v", tt.volume, got)
		}
	}
}
