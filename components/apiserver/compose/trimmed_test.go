package compose_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/testing/testwait"
)

// TestTrimmed updates an object from an informer, which has no managed fields. The stored managed
// fields must only reflect the update.
func TestTrimmed(t *testing.T) {
	clients, err := start(t).server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	ctx, api := t.Context(), clients.Kube.CoreV1().PersistentVolumeClaims("default")
	lister := clients.Informers.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims("default")
	clients.Informers.StartWithContext(ctx)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"a": "1"}}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	made, err := api.Create(ctx, claim, metav1.CreateOptions{FieldManager: "maker"})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.ManagedFields) != 1 {
		t.Fatalf("managed fields %v", made.ManagedFields)
	}
	var kept *corev1.PersistentVolumeClaim
	testwait.Succeed(t, "informers to catch up", func() error {
		kept, err = lister.Get("c")
		return err
	})
	if kept.ManagedFields != nil {
		t.Errorf("the informer has managed fields: %v", kept.ManagedFields)
	}
	changed := kept.DeepCopy()
	changed.Labels["b"] = "2"
	updated, err := api.Update(ctx, changed, metav1.UpdateOptions{FieldManager: "changer"})
	if err != nil {
		t.Fatal(err)
	}
	var managers []string
	for _, f := range updated.ManagedFields {
		managers = append(managers, f.Manager)
	}
	slices.Sort(managers)
	if fmt.Sprint(managers) != "[changer maker]" {
		t.Errorf("managed by %v", managers)
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		if kept, err = lister.Get("c"); err == nil && kept.ResourceVersion != updated.ResourceVersion {
			err = errors.New("the informer has not heard of the update")
		}
		return err
	})
	if kept.ManagedFields != nil || kept.Labels["b"] != "2" {
		t.Errorf("the informer has %+v", kept.ObjectMeta)
	}
}
