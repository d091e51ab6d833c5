package attachdetach

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/controllers/internal/controltest"
)

const disk = corev1.UniqueVolumeName("kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.com.example:disks:3")

// TestDisks: an exclusive iSCSI disk is attached to one node only, and to another node once the
// first has released it.
func TestDisks(t *testing.T) {
	ctx := context.Background()
	n, p, pvc, pv := objects()
	pv.Spec.CSI, pv.Spec.ISCSI = nil, &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: "iqn.2001-04.com.example:disks", Lun: 3}
	other, second := n.DeepCopy(), p.DeepCopy()
	other.Name, other.UID = "n2", "n2"
	second.Name, second.UID, second.Spec.NodeName = "q", "q", "n2"
	f := controltest.New(t, n, other, p, second, pvc, pv)
	c, err := New(f.Env, 6*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	nodes, kind := f.Kube.CoreV1().Nodes(), corev1.SchemeGroupVersion.WithKind("Node")
	sync := func(node string) {
		t.Helper()
		// The second node cannot use the disk while it is reserved, so the sync returns an error.
		_ = controltest.Sync(t, c.Loop, node)
	}
	has := func(node string) bool {
		t.Helper()
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(n.Status.VolumesAttached, corev1.AttachedVolume{Name: disk})
	}
	sync("n1")
	sync("n2") // its cache does not show the first attachment
	if !has("n1") || has("n2") {
		t.Fatalf("attached to n1: %v, to n2: %v", has("n1"), has("n2"))
	}
	f.Observe(kind)
	f.Recorded()
	sync("n1")
	sync("n2")
	if e := f.Recorded(); has("n2") || controltest.Count(e, "Warning FailedAttachVolume") != 1 {
		t.Errorf("attached to n2: %v, events %v", has("n2"), e)
	}
	// The pod on n1 terminates, and the disk is still mounted there.
	use := func(used ...corev1.UniqueVolumeName) {
		t.Helper()
		n, err := nodes.Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.VolumesInUse = used
		if _, err := nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Observe(kind)
	}
	use(disk)
	f.SetPod(p, corev1.PodSucceeded, false)
	f.Observe(corev1.SchemeGroupVersion.WithKind("Pod"))
	sync("n1")
	if !has("n1") {
		t.Error("detached from n1, which has it mounted")
	}
	use()
	sync("n1")
	f.Observe(kind)
	sync("n2")
	if e := f.Recorded(); has("n1") || !has("n2") || controltest.Count(e, "Normal SuccessfulAttachVolume") != 1 {
		t.Errorf("attached to n1: %v, to n2: %v, events %v", has("n1"), has("n2"), e)
	}
}

// TestSharedDisks: shared disks, and disks without a claim, are attached to every node.
func TestSharedDisks(t *testing.T) {
	for name, claim := range map[string]bool{"of a claim": true, "of the pod": false} {
		t.Run(name, func(t *testing.T) {
			n, p, pvc, pv := objects()
			src := corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: "iqn.2001-04.com.example:disks", Lun: 3}
			pv.Spec.CSI, pv.Spec.ISCSI, pv.Spec.AccessModes = nil, &src, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
			if !claim {
				p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: src.TargetPortal, IQN: src.IQN, Lun: src.Lun}}
			}
			other := n.DeepCopy()
			other.Name, other.UID, other.Status.VolumesAttached = "n2", "n2", []corev1.AttachedVolume{{Name: disk}}
			f := controltest.New(t, n, other, p, pvc, pv)
			c, err := New(f.Env, 6*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			refuse := true
			f.Kube.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				if refuse {
					return true, nil, errors.New("not now")
				}
				return false, nil, nil
			})
			// An attachment that the API server rejected emits no event, and one that the cache
			// does not show yet does not emit a second event.
			for round, want := range []int{0, 1, 0} {
				refuse = round == 0
				if err := controltest.Sync(t, c.Loop, "n1"); (err != nil) != refuse {
					t.Fatal(err)
				}
				if e := f.Recorded(); controltest.Count(e, "Normal SuccessfulAttachVolume") != want {
					t.Errorf("round %d: events %v", round, e)
				}
			}
			got, err := f.Kube.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
			if err != nil || len(got.Status.VolumesAttached) != 1 || got.Status.VolumesAttached[0].Name != disk {
				t.Errorf("%v, %v", got.Status.VolumesAttached, err)
			}
		})
	}
}
