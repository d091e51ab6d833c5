package replicationcontroller

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestSync(t *testing.T) {
	two := int32(2)
	rcLabels := map[string]string{"app": "web"}
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(&corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rc", Generation: 1},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &two, Selector: rcLabels, Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: rcLabels}}},
	})
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	pods := f.Pods("ns")
	if len(pods) != 2 {
		t.Fatalf("%d pods", len(pods))
	}
	for _, p := range pods {
		if ref := metav1.GetControllerOf(p); ref == nil || ref.Kind != "ReplicationController" || ref.APIVersion != "v1" {
			t.Errorf("owner %+v", ref)
		}
		f.SetPod(p, corev1.PodRunning, true)
	}
	f.Observe(corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("ReplicationController"))
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	rc, err := f.Kube.CoreV1().ReplicationControllers("ns").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil || rc.Status.Replicas != 2 || rc.Status.AvailableReplicas != 2 || rc.Status.ObservedGeneration != 1 || rc.Spec.Selector["app"] != "web" {
		t.Errorf("%+v, %v", rc, err)
	}
	// There is nothing to update, although the API does not store the number of terminating pods.
	f.Observe(corev1.SchemeGroupVersion.WithKind("ReplicationController"))
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("writes %v", w)
	}
}
