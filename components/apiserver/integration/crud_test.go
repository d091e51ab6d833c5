package integration

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver"
)

func TestConfigMaps(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			rc := admin(s)
			rc.ContentType = contentType
			kube, err := kubernetes.NewForConfig(rc)
			if err != nil {
				t.Fatal(err)
			}
			testConfigMaps(t, kube)
		})
	}
}

func testConfigMaps(t *testing.T, kube kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cms := kube.CoreV1().ConfigMaps("default")
	w, err := cms.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	made, err := cms.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}},
		Data:       map[string]string{"k": "v"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() || len(made.ManagedFields) != 1 {
		t.Errorf("created: %+v", made.ObjectMeta)
	}
	if _, err := cms.Create(ctx, made.DeepCopy(), metav1.CreateOptions{}); err == nil {
		t.Error("created with a resource version")
	}
	if _, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	got, err := cms.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.Data["k"] != "v" || got.ResourceVersion != made.ResourceVersion {
		t.Fatalf("got %+v, %v", got, err)
	}
	got.Data["k"] = "w"
	updated, err := cms.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cms.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("updated an old version: %v", err)
	}
	same, err := cms.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil || same.ResourceVersion != updated.ResourceVersion {
		t.Errorf("no change made %s of %s, %v", same.ResourceVersion, updated.ResourceVersion, err)
	}
	for kind, patch := range map[types.PatchType]string{
		types.JSONPatchType:           `[{"op":"add","path":"/data/json","value":"1"}]`,
		types.MergePatchType:          `{"data":{"merge":"1"}}`,
		types.StrategicMergePatchType: `{"data":{"strategic":"1"}}`,
	} {
		if updated, err = cms.Patch(ctx, "a", kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	if len(updated.Data) != 4 {
		t.Errorf("patched: %v", updated.Data)
	}
	applied, err := cms.Apply(ctx, corev1ac.ConfigMap("a", "default").WithData(map[string]string{"applied": "1"}), metav1.ApplyOptions{FieldManager: "me"})
	if err != nil || applied.Data["applied"] != "1" {
		t.Fatalf("applied: %+v %v", applied, err)
	}
	if _, err := cms.Apply(ctx, corev1ac.ConfigMap("a", "default").WithData(map[string]string{"k": "mine"}), metav1.ApplyOptions{FieldManager: "me"}); !apierrors.IsConflict(err) {
		t.Errorf("apply over another's field: %v", err)
	}
	applied2, err := cms.Apply(ctx, corev1ac.ConfigMap("b", "default").WithData(map[string]string{"k": "v"}), metav1.ApplyOptions{FieldManager: "me"})
	if err != nil || applied2.UID == "" {
		t.Fatalf("applied a new one: %v", err)
	}
	list, err := cms.List(ctx, metav1.ListOptions{LabelSelector: "x=y"})
	if err != nil || len(list.Items) != 1 || list.ResourceVersion == "" || list.Items[0].ResourceVersion != applied.ResourceVersion {
		t.Fatalf("list: %+v %v", list, err)
	}
	list, err = cms.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Continue == "" || list.RemainingItemCount == nil || *list.RemainingItemCount != 1 {
		t.Fatalf("first page: %+v %v", list.ListMeta, err)
	}
	list, err = cms.List(ctx, metav1.ListOptions{Limit: 1, Continue: list.Continue})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "b" || list.Continue != "" {
		t.Fatalf("second page: %+v %v", list, err)
	}
	if err := cms.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cms.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got a deleted one: %v", err)
	}
	if err := cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []watch.EventType{
		watch.Added, watch.Modified, watch.Modified, watch.Modified, watch.Modified, watch.Modified,
		watch.Added, watch.Deleted, watch.Deleted,
	}
	for i, kind := range want {
		select {
		case ev := <-w.ResultChan():
			if ev.Type != kind {
				t.Fatalf("event %d is %s %+v, not %s", i, ev.Type, ev.Object, kind)
			}
		case <-ctx.Done():
			t.Fatalf("no event %d", i)
		}
	}
}
