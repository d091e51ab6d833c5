package integration

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testetcd"
)

// TestEtcdOverrideStores checks that individual resources can be stored in a separate etcd.
func TestEtcdOverrideStores(t *testing.T) {
	main, other := testetcd.Client(t), testetcd.Client(t)
	apart := map[schema.GroupResource]*clientv3.Client{{Resource: "events"}: other, {Resource: "configmaps"}: other}
	s := startServer(t, apiserver.Config{Etcd: main, EtcdOverrides: apart})
	kube, err := kubernetes.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	watch, err := kube.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	meta := metav1.ObjectMeta{Name: "one"}
	made, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Data = map[string]string{"a": "b"}
	if _, err := kube.CoreV1().ConfigMaps("default").Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADDED", "MODIFIED"} {
		if e := <-watch.ResultChan(); string(e.Type) != want {
			t.Errorf("got %s, want %s", e.Type, want)
		}
	}
	for key, where := range map[string][2]int64{"/registry/configmaps/default/one": {0, 1}, "/registry/secrets/default/one": {1, 0}} {
		for i, c := range []*clientv3.Client{main, other} {
			got, err := c.Get(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if got.Count != where[i] {
				t.Errorf("%s: %d in etcd %d", key, got.Count, i)
			}
		}
	}
	if err := kube.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := kube.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	health, err := kube.RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
	if err != nil || !strings.Contains(string(health), "[+]etcd-override-0 ok") || !strings.Contains(string(health), "[+]etcd-readiness ok") {
		t.Errorf("got %s, %v", health, err)
	}
	if _, err := apiserver.New(apiserver.Config{Etcd: main, EtcdOverrides: map[schema.GroupResource]*clientv3.Client{{Resource: "services"}: other}}); err == nil {
		t.Error("services and their addresses are accepted in different etcds")
	}
}
