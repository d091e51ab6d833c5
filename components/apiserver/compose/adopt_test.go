package compose_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestAdopt serves objects that clusters of Kubernetes 1.19 have stored: Services without IP
// families, and claims with only one of the two data source fields. They can be updated and
// deleted.
func TestAdopt(t *testing.T) {
	const single, dual = corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyRequireDualStack
	services := map[string]struct {
		spec     string
		ips      []string
		families []corev1.IPFamily
		policy   corev1.IPFamilyPolicy
	}{
		"one":      {`"clusterIP":"10.96.7.1","ports":[{"port":80}]`, []string{"10.96.7.1"}, []corev1.IPFamily{"IPv4"}, single},
		"ported":   {`"type":"NodePort","clusterIP":"10.96.7.2","ports":[{"port":80,"nodePort":30123}]`, []string{"10.96.7.2"}, []corev1.IPFamily{"IPv4"}, single},
		"headless": {`"clusterIP":"None","selector":{"a":"b"},"ports":[{"port":80}]`, []string{"None"}, []corev1.IPFamily{"IPv4"}, single},
		"manual":   {`"clusterIP":"None","ports":[{"port":80}]`, []string{"None"}, []corev1.IPFamily{"IPv4", "IPv6"}, dual},
		"external": {`"type":"ExternalName","externalName":"a.b"`, nil, nil, ""},
	}
	const meta = `"metadata":{"name":%q,"namespace":"default","uid":"7a0c1d2e-0000-4000-8000-000000000001","creationTimestamp":"2020-01-01T00:00:00Z"}`
	e := startOn(t, func(etcd *clientv3.Client) {
		put := func(path, name, kind, spec string) {
			value := fmt.Sprintf(`{"apiVersion":"v1","kind":%q,`+meta+`,"spec":{%s}}`, kind, name, spec)
			if _, err := etcd.Put(t.Context(), "/registry/"+path+"/default/"+name, value); err != nil {
				t.Fatal(err)
			}
		}
		for name, s := range services {
			put("services/specs", name, "Service", s.spec)
		}
		put("persistentvolumeclaims", "copy", "PersistentVolumeClaim",
			`"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"dataSource":{"kind":"PersistentVolumeClaim","name":"x"}`)
	})
	kube := kubernetes.NewForConfigOrDie(e.server.ClientConfig("admin", "system:masters"))
	label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	for name, want := range services {
		for _, change := range []bool{false, true} {
			svc, err := kube.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
			if change {
				svc, err = kube.CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, label, metav1.PatchOptions{})
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			policy := corev1.IPFamilyPolicy("")
			if p := svc.Spec.IPFamilyPolicy; p != nil {
				policy = *p
			}
			if fmt.Sprint(svc.Spec.ClusterIPs, svc.Spec.IPFamilies) != fmt.Sprint(want.ips, want.families) || policy != want.policy {
				t.Errorf("%s: %v %v %s", name, svc.Spec.ClusterIPs, svc.Spec.IPFamilies, policy)
			}
		}
	}
	claim, err := kube.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "copy", types.MergePatchType, label, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ref := claim.Spec.DataSourceRef; ref == nil || ref.Name != "x" {
		t.Errorf("the source: %v", ref)
	}
}
