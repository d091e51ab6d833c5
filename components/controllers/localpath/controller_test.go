package localpath

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
	"hyperkube/internal/pod/localpath"
)

func objects() (*corev1.Node, *storagev1.StorageClass, *corev1.PersistentVolumeClaim) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{corev1.LabelHostname: "host1"}, Annotations: map[string]string{localpath.Annotation: "/volumes"},
	}}
	k := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "k"}, Provisioner: localpath.Provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", Annotations: map[string]string{
		volumehelpers.AnnStorageProvisioner: localpath.Provisioner, volumehelpers.AnnSelectedNode: "n1",
	}}}
	pvc.Spec.StorageClassName = &k.Name
	pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pvc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return n, k, pvc
}

func TestProvision(t *testing.T) {
	for name, tc := range map[string]struct {
		edit  func(*corev1.Node, *storagev1.StorageClass, *corev1.PersistentVolumeClaim)
		want  string
		event string
	}{
		"on the selected node": {want: "[create persistentvolumes]", event: "Normal ProvisioningSucceeded"},
		"no node yet": {edit: func(_ *corev1.Node, _ *storagev1.StorageClass, c *corev1.PersistentVolumeClaim) {
			delete(c.Annotations, volumehelpers.AnnSelectedNode)
		}, want: "[]"},
		"immediate binding": {edit: func(_ *corev1.Node, k *storagev1.StorageClass, c *corev1.PersistentVolumeClaim) {
			delete(c.Annotations, volumehelpers.AnnSelectedNode)
			*k.VolumeBindingMode = storagev1.VolumeBindingImmediate
		}, want: "[create persistentvolumes]"},
		"node without local volumes": {edit: func(n *corev1.Node, _ *storagev1.StorageClass, _ *corev1.PersistentVolumeClaim) {
			delete(n.Annotations, localpath.Annotation)
		}, want: "[update persistentvolumeclaims]", event: "Warning ProvisioningFailed"},
		"block volume": {edit: func(_ *corev1.Node, _ *storagev1.StorageClass, c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, want: "[]", event: "Warning ProvisioningFailed"},
		"other provisioner": {edit: func(_ *corev1.Node, k *storagev1.StorageClass, _ *corev1.PersistentVolumeClaim) { k.Provisioner = "p" }, want: "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			n, k, pvc := objects()
			if tc.edit != nil {
				tc.edit(n, k, pvc)
			}
			f := controltest.New(t, n, k, pvc)
			c, err := New(f.Env, "image")
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, claimKey+"ns/c"); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); fmt.Sprint(w) != tc.want {
				t.Errorf("writes %v, want %s", w, tc.want)
			}
			if e := f.Recorded(); tc.event != "" && controltest.Count(e, tc.event) != 1 {
				t.Errorf("events %q", e)
			}
		})
	}
}

// TestLife creates a volume and deletes it together with its directory.
func TestLife(t *testing.T) {
	ctx := context.Background()
	n, k, pvc := objects()
	f := controltest.New(t, n, k, pvc)
	c, err := New(f.Env, "image")
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, claimKey+"ns/c"); err != nil {
		t.Fatal(err)
	}
	pv, err := f.Kube.CoreV1().PersistentVolumes().Get(ctx, "pvc-u", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !localpath.IsManaged(pv) || pv.Spec.Local.Path != "/volumes/pvc-u" || localpath.Hostname(pv) != "host1" || pv.Spec.ClaimRef.UID != "u" {
		t.Errorf("volume %+v", pv.Spec)
	}
	step := func(edit func()) []string {
		t.Helper()
		edit()
		if _, err := f.Kube.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Observe(corev1.SchemeGroupVersion.WithKind("PersistentVolume"), corev1.SchemeGroupVersion.WithKind("Pod"))
		f.Writes()
		if err := controltest.Sync(t, c.Loop, volumeKey+"pvc-u"); err != nil {
			t.Log(err)
		}
		return f.Writes()
	}
	if w := step(func() { pv.Status.Phase = corev1.VolumeBound }); len(w) != 0 {
		t.Errorf("bound: %v", w)
	}
	now := metav1.NewTime(controltest.Now)
	if w := step(func() { pv.Status.Phase, pv.DeletionTimestamp = corev1.VolumeReleased, &now }); fmt.Sprint(w) != "[create pods]" {
		t.Fatalf("released: %v", w)
	}
	pod := f.Pods(metav1.NamespaceSystem)["remove-pvc-u"]
	if pod.Spec.NodeName != "n1" || pod.Spec.Volumes[0].HostPath.Path != "/volumes" || fmt.Sprint(pod.Spec.Containers[0].Args) != "[scrub /scrub pvc-u]" {
		t.Errorf("pod %+v", pod.Spec)
	}
	if w := step(func() {}); len(w) != 0 {
		t.Errorf("while the pod runs: %v", w)
	}
	f.SetPod(pod, corev1.PodFailed, false)
	if w := step(func() {}); fmt.Sprint(w) != "[delete pods remove-pvc-u]" {
		t.Errorf("after the pod has failed: %v", w)
	}
	if w := step(func() {}); fmt.Sprint(w) != "[create pods]" {
		t.Errorf("again: %v", w)
	}
	f.SetPod(f.Pods(metav1.NamespaceSystem)["remove-pvc-u"], corev1.PodSucceeded, false)
	if w := step(func() {}); fmt.Sprint(w) != "[update persistentvolumes delete pods remove-pvc-u]" {
		t.Errorf("after the directory is removed: %v", w)
	}
}

// TestForged: a volume whose directory is not named after it is ignored.
func TestForged(t *testing.T) {
	for _, path := range []string{"/etc", "/volumes/../etc", "/volumes/other", "volumes/v", "/volumes/v/"} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{volumehelpers.AnnDynamicallyProvisioned: localpath.Provisioner}}}
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
		if localpath.IsManaged(pv) {
			t.Errorf("%s counts as a directory of the provisioner", path)
		}
	}
}
