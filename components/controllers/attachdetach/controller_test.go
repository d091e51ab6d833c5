package attachdetach

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

const handle, driver = "vol-1", "csi.example.com"

func objects() (*corev1.Node, *corev1.Pod, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n", Annotations: map[string]string{managedAnnotation: "true"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	pvc.Spec.VolumeName, pvc.Status.Phase = "pv", corev1.ClaimBound
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "c"}
	return n, p, pvc, pv
}

func TestAttachAndDetach(t *testing.T) {
	ctx := context.Background()
	n, p, pvc, pv := objects()
	f := controltest.New(t, n, p, pvc, pv)
	c, err := New(f.Env, 6*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	sync := func() []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "n1"); err != nil {
			t.Fatal(err)
		}
		w := f.Writes()
		f.Observe(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"), corev1.SchemeGroupVersion.WithKind("Node"), corev1.SchemeGroupVersion.WithKind("Pod"))
		return w
	}
	if w := sync(); len(w) != 1 || w[0] != "create volumeattachments" {
		t.Fatalf("first: %v", w)
	}
	name := attachmentName(driver, handle, "n1")
	a, err := f.Kube.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Status.Attached = true
	if _, err := f.Kube.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Observe(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"))
	f.Writes()
	if w := sync(); len(w) != 1 || w[0] != "patch nodes/status n1" {
		t.Fatalf("attached: %v", w)
	}
	if e := f.Recorded(); controltest.Count(e, "Normal SuccessfulAttachVolume") != 1 {
		t.Errorf("events %v", e)
	}
	if w := sync(); len(w) != 0 {
		t.Fatalf("nothing to do: %v", w)
	}
	// The pod terminates while the node has the volume mounted.
	use := func(in bool) {
		node, err := f.Kube.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.VolumesInUse = nil
		if in {
			node.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(pv.Spec.CSI)}
		}
		if _, err := f.Kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Observe(corev1.SchemeGroupVersion.WithKind("Node"))
		f.Writes()
	}
	use(true)
	f.SetPod(p, corev1.PodSucceeded, false)
	f.Observe(corev1.SchemeGroupVersion.WithKind("Pod"))
	f.Writes()
	if w := sync(); len(w) != 0 {
		t.Fatalf("in use: %v", w)
	}
	f.Clock.SetTime(controltest.Now.Add(7 * time.Minute))
	if w := sync(); len(w) != 0 {
		t.Fatalf("in use by a healthy node: %v", w)
	}
	use(false)
	if w := sync(); len(w) != 2 || w[0] != "patch nodes/status n1" || w[1] != "delete volumeattachments "+name {
		t.Fatalf("detached: %v", w)
	}
}

func TestDeadNode(t *testing.T) {
	for name, tc := range map[string]struct {
		taint  bool
		after  time.Duration
		detach bool
	}{
		"unresponsive for a while":  {after: time.Minute},
		"unresponsive for too long": {after: 7 * time.Minute, detach: true},
		"out of service":            {taint: true, detach: true},
	} {
		t.Run(name, func(t *testing.T) {
			n, p, pvc, pv := objects()
			p.Status.Phase = corev1.PodFailed
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(pv.Spec.CSI)}
			if tc.taint {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
			}
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(driver, handle, "n1"), UID: "a"}}
			a.Spec.NodeName, a.Spec.Attacher, a.Spec.Source.PersistentVolumeName = "n1", driver, &pv.Name
			f := controltest.New(t, n, p, pvc, pv, a)
			c, err := New(f.Env, 6*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			var writes []string
			for _, at := range []time.Duration{0, tc.after} {
				f.Clock.SetTime(controltest.Now.Add(at))
				if err := controltest.Sync(t, c.Loop, "n1"); err != nil {
					t.Fatal(err)
				}
				writes = append(writes, f.Writes()...)
			}
			if got := controltest.Count(writes, "delete volumeattachments") > 0; got != tc.detach {
				t.Errorf("writes %v", writes)
			}
		})
	}
}

func TestMultiAttach(t *testing.T) {
	n, p, pvc, pv := objects()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(driver, handle, "n2"), UID: "a"}}
	a.Spec.NodeName, a.Spec.Attacher, a.Spec.Source.PersistentVolumeName = "n2", driver, &pv.Name
	f := controltest.New(t, n, p, pvc, pv, a)
	c, err := New(f.Env, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "n1"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("writes %v", w)
	}
	if e := f.Recorded(); controltest.Count(e, "Warning FailedAttachVolume Multi-Attach error") != 1 {
		t.Errorf("events %v", e)
	}
}

// TestVolumeGone: an attachment is removed although its PersistentVolume was deleted, but not while
// the node has the volume mounted, nor while only the cache is stale.
func TestVolumeGone(t *testing.T) {
	n, _, _, pv := objects()
	name := attachmentName(driver, handle, "n1")
	n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(pv.Spec.CSI)}
	n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: uniqueName(pv.Spec.CSI)}}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "a"}}
	a.Spec.Attacher, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName, a.Status.Attached = driver, "n1", &pv.Name, true
	f := controltest.New(t, n, a)
	c, err := New(f.Env, 6*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	sync := func() []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "n1"); err != nil {
			t.Fatal(err)
		}
		return f.Writes()
	}
	if w := sync(); len(w) != 0 {
		t.Fatalf("in use: %v", w)
	}
	n.Status.VolumesInUse = nil
	f.Cache(n)
	if _, err := f.Kube.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Writes()
	if w := sync(); len(w) != 0 {
		t.Fatalf("a volume that the cache does not show yet: %v", w)
	}
	if err := f.Kube.CoreV1().PersistentVolumes().Delete(t.Context(), pv.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Writes()
	if w := sync(); len(w) != 2 || w[0] != "patch nodes/status n1" || w[1] != "delete volumeattachments "+name {
		t.Fatalf("gone: %v", w)
	}
}

// TestMultiAttachStaleCache: an exclusive volume is not attached to a second node before the cache
// shows the first attachment.
func TestMultiAttachStaleCache(t *testing.T) {
	n, p, pvc, pv := objects()
	other, q := n.DeepCopy(), p.DeepCopy()
	other.Name, q.Name, q.UID, q.Spec.NodeName = "n2", "q", "q", "n2"
	f := controltest.New(t, n, other, p, q, pvc, pv)
	c, err := New(f.Env, 6*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "n1"); err != nil {
		t.Fatal(err)
	}
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "n2"); !errors.Is(err, control.ErrStale) {
		t.Errorf("error %v", err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("to the second: %v", w)
	}
	// The attachment is in the cache: the waiting pod gets an event.
	f.Observe(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"))
	c.releaseReservation(pv.Name, attachmentName(driver, handle, "n1"))
	if err := controltest.Sync(t, c.Loop, "n2"); err != nil {
		t.Fatal(err)
	}
	if e := f.Recorded(); len(f.Writes()) != 0 || controltest.Count(e, "Warning FailedAttachVolume Multi-Attach error") != 1 || len(c.pendingAttachments) != 0 {
		t.Errorf("events %v, made %v", e, c.pendingAttachments)
	}
}
