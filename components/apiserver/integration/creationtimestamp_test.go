package integration

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	protobufcodec "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testetcd"
)

// TestMissingCreationTimestamp changes an object that was stored without a creation timestamp. It
// must remain without one.
func TestMissingCreationTimestamp(t *testing.T) {
	etcd := testetcd.Client(t)
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "1"}, Data: map[string]string{"a": "b"},
	}
	var data bytes.Buffer
	if err := protobufcodec.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(cm, &data); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Put(t.Context(), "/registry/configmaps/default/a", data.String()); err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(admin(startServer(t, apiserver.Config{Etcd: etcd})))
	if err != nil {
		t.Fatal(err)
	}
	cms := kube.CoreV1().ConfigMaps("default")
	if _, err := cms.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"c":"d"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := cms.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"e": "f"}}, metav1.UpdateOptions{})
	if err != nil || got.Data["e"] != "f" || !got.CreationTimestamp.IsZero() {
		t.Errorf("%+v %v", got, err)
	}
}
