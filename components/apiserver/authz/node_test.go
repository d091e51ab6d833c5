package authz

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func podOn(node, name string, change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "sa-" + name, Containers: []corev1.Container{{Name: "c"}}},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func TestNode(t *testing.T) {
	mirror := podOn("n1", "mirror", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "stolen"}}}}
	})
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	a, kube := start(t,
		podOn("n1", "p1", func(s *corev1.PodSpec) {
			s.ImagePullSecrets = []corev1.LocalObjectReference{local("pull")}
			s.Containers[0].Env = []corev1.EnvVar{
				{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("env")}}},
				{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("env-cm")}}},
			}
			s.InitContainers = []corev1.Container{{EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("from")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("from-cm")}},
			}}}
			s.Volumes = []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "vol"}}},
				{Name: "b", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("vol-cm")}}},
				{Name: "c", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: local("proj")}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("kube-root-ca.crt")}},
				}}}},
				{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pvc"}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			}
		}),
		podOn("n2", "p2", nil), mirror,
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pvc"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "pvc"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodePublishSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "publish"}}}}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "other-pv"}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "x"}}},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "own"}, Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}, Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n2"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va2"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n2"}},
	)
	n1 := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}
	imposter := &user.DefaultInfo{Name: "system:node:n1"}
	nameless := &user.DefaultInfo{Name: "system:node:", Groups: []string{"system:nodes"}}
	on := func(r authorizer.AttributesRecord, field, value string) authorizer.AttributesRecord {
		r.FieldSelectorRequirements = fields.OneTermEqualSelector(field, value).Requirements()
		return r
	}
	tests := []struct {
		attrs authorizer.AttributesRecord
		want  bool
	}{
		{attrs(n1, "get", "ns", "", "secrets", "pull"), true},
		{attrs(n1, "get", "ns", "", "secrets", "env"), true},
		{attrs(n1, "get", "ns", "", "secrets", "from"), true},
		{attrs(n1, "watch", "ns", "", "secrets", "vol"), true},
		{attrs(n1, "list", "ns", "", "secrets", "proj"), true},
		{attrs(n1, "get", "csi", "", "secrets", "publish"), true},
		{attrs(n1, "get", "other", "", "secrets", "pull"), false},
		{attrs(n1, "get", "ns", "", "secrets", "stolen"), false},
		{attrs(n1, "get", "ns", "", "secrets", "none"), false},
		{attrs(n1, "list", "ns", "", "secrets", ""), false},
		{attrs(n1, "list", "", "", "secrets", ""), false},
		{attrs(n1, "update", "ns", "", "secrets", "pull"), false},
		{attrs(n1, "get", "ns", "", "configmaps", "env-cm"), true},
		{attrs(n1, "get", "ns", "", "configmaps", "from-cm"), true},
		{attrs(n1, "get", "ns", "", "configmaps", "vol-cm"), true},
		{attrs(n1, "watch", "ns", "", "configmaps", "kube-root-ca.crt"), true},
		{attrs(n1, "get", "ns", "", "configmaps", "pull"), false},
		{attrs(n1, "get", "ns", "", "persistentvolumeclaims", "pvc"), true},
		{attrs(n1, "get", "ns", "", "persistentvolumeclaims", "p1-scratch"), true},
		{attrs(n1, "patch", "ns", "", "persistentvolumeclaims/status", "pvc"), true},
		{attrs(n1, "get", "ns", "", "persistentvolumeclaims/status", "pvc"), false},
		{attrs(n1, "update", "ns", "", "persistentvolumeclaims", "pvc"), false},
		{attrs(n1, "get", "", "", "persistentvolumes", "pv"), true},
		{attrs(n1, "get", "", "", "persistentvolumes", "other-pv"), false},
		{attrs(n1, "get", "", "", "persistentvolumes", "none"), false},
		{attrs(n1, "get", "", "storage.k8s.io", "volumeattachments", "va1"), true},
		{attrs(n1, "get", "", "storage.k8s.io", "volumeattachments", "va2"), false},
		{attrs(n1, "create", "ns", "", "serviceaccounts/token", "sa-p1"), true},
		{attrs(n1, "create", "ns", "", "serviceaccounts/token", "sa-p2"), false},
		{attrs(n1, "create", "ns", "", "serviceaccounts", "sa-p1"), false},
		{attrs(n1, "create", "ns", "", "serviceaccounts/token", ""), false},
		{attrs(n1, "get", "ns", "", "serviceaccounts", "sa-p1"), true},
		{attrs(n1, "get", "ns", "", "serviceaccounts", "sa-p2"), false},
		{attrs(n1, "get", "ns", "", "serviceaccounts/token", "sa-p1"), false},
		{attrs(n1, "delete", "ns", "", "serviceaccounts", "sa-p1"), false},
		{attrs(n1, "get", "ns", "", "pods", "p1"), true},
		{attrs(n1, "get", "ns", "", "pods", "mirror"), true},
		{attrs(n1, "get", "ns", "", "pods", "p2"), false},
		{attrs(n1, "list", "", "", "pods", ""), false},
		{on(attrs(n1, "list", "", "", "pods", ""), "spec.nodeName", "n1"), true},
		{on(attrs(n1, "watch", "", "", "pods", ""), "spec.nodeName", "n2"), false},
		{attrs(n1, "create", "ns", "", "pods", ""), true},
		{attrs(n1, "patch", "ns", "", "pods/status", "p1"), true},
		{attrs(n1, "create", "ns", "", "pods/eviction", "p1"), true},
		{attrs(n1, "create", "ns", "", "pods/exec", "p1"), false},
		{attrs(n1, "create", "ns", "", "pods/binding", "p1"), false},
		{attrs(n1, "get", "", "", "nodes", "n1"), true},
		{attrs(n1, "get", "", "", "nodes", "n2"), false},
		{on(attrs(n1, "watch", "", "", "nodes", ""), "metadata.name", "n1"), true},
		{attrs(n1, "list", "", "", "nodes", ""), false},
		{attrs(n1, "patch", "", "", "nodes/status", "n1"), true},
		{attrs(n1, "delete", "", "", "nodes", "n1"), false},
		{attrs(n1, "get", "kube-node-lease", "coordination.k8s.io", "leases", "n1"), true},
		{attrs(n1, "get", "kube-node-lease", "coordination.k8s.io", "leases", "n2"), false},
		{attrs(n1, "get", "kube-system", "coordination.k8s.io", "leases", "n1"), false},
		{attrs(n1, "create", "kube-node-lease", "coordination.k8s.io", "leases", ""), true},
		{attrs(n1, "list", "kube-node-lease", "coordination.k8s.io", "leases", ""), false},
		{attrs(n1, "get", "", "storage.k8s.io", "csinodes", "n1"), true},
		{attrs(n1, "update", "", "storage.k8s.io", "csinodes", "n2"), false},
		{attrs(n1, "create", "ns", "certificates.k8s.io", "podcertificaterequests", ""), true},
		{attrs(n1, "get", "ns", "certificates.k8s.io", "podcertificaterequests", "own"), true},
		{attrs(n1, "get", "ns", "certificates.k8s.io", "podcertificaterequests", "other"), false},
		{attrs(n1, "get", "ns", "certificates.k8s.io", "podcertificaterequests/status", "own"), false},
		{attrs(n1, "list", "", "certificates.k8s.io", "podcertificaterequests", ""), false},
		{on(attrs(n1, "watch", "", "certificates.k8s.io", "podcertificaterequests", ""), "spec.nodeName", "n1"), true},
		{attrs(n1, "list", "", "", "services", ""), true},
		{attrs(n1, "create", "ns", "events.k8s.io", "events", ""), true},
		{attrs(n1, "create", "", "authorization.k8s.io", "subjectaccessreviews", ""), true},
		{attrs(n1, "list", "", "apps", "deployments", ""), false},
		{attrs(imposter, "get", "ns", "", "secrets", "pull"), false},
		{attrs(nameless, "get", "", "", "nodes", ""), false},
	}
	for _, tt := range tests {
		d, reason, err := a.Authorize(t.Context(), tt.attrs)
		if err != nil || (d == authorizer.DecisionAllow) != tt.want {
			t.Errorf("%s %s/%s/%s %s: %v %q %v", tt.attrs.Verb, tt.attrs.Namespace, tt.attrs.Resource, tt.attrs.Subresource, tt.attrs.Name, d, reason, err)
		}
	}

	// The authorizer waits for a pod that is not in the graph yet, and removes deleted ones.
	a.node.pendingPodTimeout = 10e9
	got := make(chan authorizer.Decision)
	req := attrs(n1, "get", "ns", "", "secrets", "late")
	go func() {
		d, _, _ := a.Authorize(t.Context(), req)
		got <- d
	}()
	late := podOn("n1", "late", func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{local("late")} })
	if _, err := kube.CoreV1().Pods("ns").Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := <-got; d != authorizer.DecisionAllow {
		t.Errorf("did not wait: %v", d)
	}
	a.node.pendingPodTimeout = 0
	if err := kube.CoreV1().Pods("ns").Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for t.Context().Err() == nil {
		if d, _, _ := a.Authorize(t.Context(), req); d != authorizer.DecisionAllow {
			break
		}
	}
}

func TestGraphCounts(t *testing.T) {
	g := newGraph()
	secret := func(pods ...*corev1.Pod) {
		for _, p := range pods {
			g.set(p)
			g.set(p)
		}
	}
	use := func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}, {Name: "s"}} }
	a, b := podOn("n", "a", use), podOn("n", "b", use)
	secret(a, b)
	r := ref{refSecret, "ns", "s"}
	g.handler().OnDelete(a)
	if !g.has(t.Context(), "n", r, 0) {
		t.Error("removed although another pod refers to it")
	}
	moved := b.DeepCopy()
	moved.UID, moved.Spec.NodeName = "new", "m"
	g.set(moved)
	if g.has(t.Context(), "n", r, 0) || !g.has(t.Context(), "m", r, 0) {
		t.Error("the graph does not follow the pod")
	}
	g.handler().OnDelete(moved)
	if len(g.nodes) != 0 || len(g.pods) != 0 {
		t.Errorf("left over: %v %v", g.nodes, g.pods)
	}
}
