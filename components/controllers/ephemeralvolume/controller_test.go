package ephemeralvolume

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestClaims(t *testing.T) {
	pod := controltest.Pod("ns", "p", nil, corev1.PodPending)
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "plain"},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}},
		}}},
	}
	f := controltest.New(t, pod)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[create persistentvolumeclaims]", "[]"} {
		if err := controltest.Sync(t, c.Loop, "ns/p"); err != nil {
			t.Fatal(err)
		}
		if w := f.Writes(); fmt.Sprint(w) != want {
			t.Errorf("writes %v, want %s", w, want)
		}
		f.Observe(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	}
	pvc, err := f.Kube.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), "p-scratch", metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(pvc, pod) || pvc.Labels["a"] != "b" {
		t.Fatalf("claim %+v, %v", pvc, err)
	}
	// A claim of that name has another owner.
	other := pvc.DeepCopy()
	other.OwnerReferences = nil
	f.Cache(other)
	if err := controltest.Sync(t, c.Loop, "ns/p"); err == nil {
		t.Error("a claim with another owner was used")
	}
}
