package scheduler

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/internal/client"
)

// run runs a scheduler with a fake API server until the end of the test.
func run(t *testing.T, kube *fake.Clientset) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	s, err := New(Config{Clients: clients, InitialBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	clients.Informers.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		clients.Informers.Shutdown()
	})
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatal("not ready")
	}
	return ctx
}

// TestUnbound: when the binding of a pod fails, its condition is set and its nomination is removed.
func TestUnbound(t *testing.T) {
	kube := fake.NewClientset(node("a"))
	kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		return true, nil, errors.New("not today")
	})
	ctx := run(t, kube)
	watch, err := kube.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := kube.CoreV1().Pods("default").Create(ctx, pod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case e := <-watch.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !ok || len(p.Status.Conditions) == 0 {
				continue
			}
			c := p.Status.Conditions[0]
			if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || c.Reason != "SchedulerError" ||
				c.Message != `running Bind plugin "DefaultBinder": not today` {
				t.Errorf("condition %+v", c)
			}
			return
		case <-ctx.Done():
			t.Fatal("no event was emitted")
		}
	}
}

// TestBindingCanceled: a pod that waits for its volume is not deleted when it is preempted, but queued
// again.
func TestBindingCanceled(t *testing.T) {
	mode, late := storagev1.VolumeBindingWaitForFirstConsumer, "late"
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c", ResourceVersion: "1"}}
	pvc.Spec.StorageClassName = &late
	kube := fake.NewClientset(node("a"), pvc, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: late}, Provisioner: "p", VolumeBindingMode: &mode})
	bound := bindable(kube)
	kube.PrependReactor("update", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim).ResourceVersion = "2"
		return false, nil, nil
	})
	kube.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		t.Errorf("%s was deleted", a.(clienttesting.DeleteAction).GetName())
		return false, nil, nil
	})
	claims, err := kube.CoreV1().PersistentVolumeClaims("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer claims.Stop()
	ctx := run(t, kube)
	create := func(p *corev1.Pod) {
		t.Helper()
		if _, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(pod("waits", requests("3"), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	for chosen := false; !chosen; {
		select {
		case e := <-claims.ResultChan():
			c, ok := e.Object.(*corev1.PersistentVolumeClaim)
			chosen = ok && c.Annotations[volumehelpers.AnnSelectedNode] == "a"
		case <-ctx.Done():
			t.Fatal("no node was chosen")
		}
	}
	create(pod("important", requests("3"), func(p *corev1.Pod) { p.Spec.Priority = new(int32(100)) }))
	select {
	case got := <-bound:
		if got != "important a" {
			t.Errorf("bound %s", got)
		}
	case <-ctx.Done():
		t.Fatal("the important pod was not bound")
	}
}

func TestNote(t *testing.T) {
	if got := note("short"); got != "short" {
		t.Errorf("%q", got)
	}
	long := note(strings.Repeat("ä", 1000))
	if len(long) > 1024 || len(long) < 1020 || !strings.HasSuffix(long, "ä ...") || !utf8.ValidString(long) {
		t.Errorf("%d bytes: %q", len(long), long[len(long)-20:])
	}
}
