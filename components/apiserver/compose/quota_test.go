package compose_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/testing/testwait"
)

// TestQuotaOfFailedCreates creates the same object twice. The reservation of the failed second
// create must be released. No quota controller runs.
func TestQuotaOfFailedCreates(t *testing.T) {
	e := start(t)
	clients, err := e.server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	ctx, kube := t.Context(), clients.Kube
	hard := corev1.ResourceList{"count/configmaps": resource.MustParse("5")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if q, err = kube.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
	if _, err = kube.CoreV1().ResourceQuotas("default").UpdateStatus(ctx, q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func() string {
		q, err := kube.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := q.Status.Used["count/configmaps"]
		return n.String()
	}
	create := func(name string) error {
		_, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	// Until the informers have synced, admission does not count the object.
	tries := 0
	testwait.Succeed(t, "informers to catch up", func() error {
		tries++
		if err := create(fmt.Sprint("first-", tries)); err != nil {
			return err
		}
		if got := used(); got != "1" {
			return fmt.Errorf("%s used", got)
		}
		return nil
	})
	for range 3 {
		if err := create("second"); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if err := create("second"); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("created twice: %v", err)
		}
	}
	if got := used(); got != "2" {
		t.Errorf("%s used, want 2", got)
	}
}
