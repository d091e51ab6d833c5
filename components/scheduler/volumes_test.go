package scheduler

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/scheduler/framework"
	"hyperkube/internal/client"
)

// TestVolumes: a pod is bound after its claim is bound, and is retried when the provisioner rejects
// the node.
func TestVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	mode, name := storagev1.VolumeBindingWaitForFirstConsumer, "late"
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c", ResourceVersion: "1"}}
	pvc.Spec.StorageClassName = &name
	kube := fake.NewClientset(node("n"), pvc,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "p", VolumeBindingMode: &mode},
		pod("p", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}))
	var version atomic.Int64
	version.Store(10)
	kube.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if m, err := meta.Accessor(a.(clienttesting.UpdateAction).GetObject()); err == nil {
			m.SetResourceVersion(strconv.FormatInt(version.Add(1), 10))
		}
		return false, nil, nil
	})
	boundTo := make(chan string, 4)
	kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		boundTo <- b.Target.Name
		return true, b, nil
	})
	claims := kube.CoreV1().PersistentVolumeClaims("default")
	watch, err := claims.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	s, err := New(Config{Clients: clients, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	clients.Informers.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	// selected waits until the scheduler has selected a node for the claim.
	selected := func() *corev1.PersistentVolumeClaim {
		t.Helper()
		for {
			select {
			case e := <-watch.ResultChan():
				if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && c.Annotations[volumehelpers.AnnSelectedNode] == "n" && c.Spec.VolumeName == "" {
					return c.DeepCopy()
				}
			case <-ctx.Done():
				t.Fatal("no node was selected")
			}
		}
	}
	c := selected()
	delete(c.Annotations, volumehelpers.AnnSelectedNode)
	if _, err := claims.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c = selected()
	select {
	case <-boundTo:
		t.Fatal("the pod was bound before its claim")
	default:
	}
	if _, err := kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Spec.VolumeName = "v"
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volumehelpers.AnnBindCompleted, "yes")
	if _, err := claims.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-boundTo:
		if got != "n" {
			t.Errorf("bound to %s", got)
		}
	case <-ctx.Done():
		t.Fatal("the pod was not bound")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Informers.Shutdown()
}

// TestAssumptionsEnd: assumed claims and volumes are removed after an event for a newer version or
// a deletion, but not after an older event.
func TestAssumptionsEnd(t *testing.T) {
	s := newIdle(t)
	claim := func(uid types.UID, version string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: uid, ResourceVersion: version}}
	}
	volume := func(uid types.UID, version string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: uid, ResourceVersion: version}}
	}
	for _, tc := range []struct {
		name    string
		uid     types.UID
		version string
		gone    bool
		left    int
	}{
		{"older event", "u", "4", false, 1},
		{"event of the same version", "u", "5", false, 1},
		{"event of a newer version", "u", "6", false, 0},
		{"deletion", "u", "5", true, 0},
		{"older deletion of a former object", "before", "3", true, 1},
	} {
		s.volumes.assume(&framework.Reservation{
			Bind:      []framework.Bound{{Volume: volume("u", "5"), Was: volume("u", "5"), Claim: claim("u", "5")}},
			Provision: []framework.Provisioned{{Claim: claim("u", "5"), Was: claim("u", "5")}},
		})
		s.volumes.claimChanged(claim(tc.uid, tc.version), tc.gone)
		s.volumes.volumeChanged(volume(tc.uid, tc.version), tc.gone)
		if n, m := len(s.volumes.assumedClaims), len(s.volumes.assumedVolumes); n != tc.left || m != tc.left {
			t.Errorf("%s: %d claims and %d volumes", tc.name, n, m)
		}
	}
}
