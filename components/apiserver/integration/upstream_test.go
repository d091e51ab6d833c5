package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	protobufcodec "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/components/apiserver"
	"hyperkube/internal/credentials/encryption"
	"hyperkube/internal/testing/testetcd"
)

// TestUpstreamStorage checks that objects stored by upstream's API server, with its keys, codecs
// and encryption providers, are served unchanged, and that upstream's codecs can decode the objects
// that this server writes.
func TestUpstreamStorage(t *testing.T) {
	const key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	providers := map[string]string{
		"identity": "identity: {}", "aescbc": "aescbc: {keys: [{name: k, secret: " + key + "}]}",
		"aesgcm": "aesgcm: {keys: [{name: k, secret: " + key + "}]}", "secretbox": "secretbox: {keys: [{name: k, secret: " + key + "}]}",
	}
	at := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, UID: "c0ffee00-0000-4000-8000-000000000000", Labels: map[string]string{"by": "upstream"}, CreationTimestamp: metav1.Unix(1_700_000_000, 0)}
	}
	in := func(name string) metav1.ObjectMeta {
		m := at(name)
		m.Namespace = "ns"
		return m
	}
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
		Containers: []corev1.Container{{Name: "c", Image: "i", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile}},
	}}
	codec := protobufcodec.NewSerializer(scheme.Scheme, scheme.Scheme)
	for provider, config := range providers {
		t.Run(provider, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "encryption.yaml")
			if err := os.WriteFile(path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, configmaps]\n  providers:\n  - "+config+"\n  - identity: {}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			transformers, err := encryption.Load(t.Context(), encryption.Config{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			etcd := testetcd.Client(t)
			type fixture struct {
				key string
				gvr schema.GroupVersionResource
				obj runtime.Object
			}
			core := func(resource string) schema.GroupVersionResource {
				return corev1.SchemeGroupVersion.WithResource(resource)
			}
			fixtures := []fixture{
				{"namespaces/ns", core("namespaces"), &corev1.Namespace{ObjectMeta: at("ns"), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}},
				{"minions/n", core("nodes"), &corev1.Node{ObjectMeta: at("n")}},
				{"services/specs/ns/s", core("services"), &corev1.Service{ObjectMeta: in("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "x.org", SessionAffinity: corev1.ServiceAffinityNone}}},
				{"services/endpoints/ns/e", core("endpoints"), &corev1.Endpoints{ObjectMeta: in("e")}}, //nolint:staticcheck // it is stored all the same
				{"controllers/ns/rc", core("replicationcontrollers"), &corev1.ReplicationController{ObjectMeta: in("rc"), Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"a": "b"}, Template: template}}},
				{"secrets/ns/s", core("secrets"), &corev1.Secret{ObjectMeta: in("s"), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"a": []byte("b")}}},
				{"configmaps/ns/c", core("configmaps"), &corev1.ConfigMap{ObjectMeta: in("c"), Data: map[string]string{"a": "b"}}},
				{"ingress/ns/i", networkingv1.SchemeGroupVersion.WithResource("ingresses"), &networkingv1.Ingress{ObjectMeta: in("i"), Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}},
				{"poddisruptionbudgets/ns/p", policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), &policyv1.PodDisruptionBudget{ObjectMeta: in("p"), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}}},
				{"endpointslices/ns/e", discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), &discoveryv1.EndpointSlice{ObjectMeta: in("e"), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}},
				{"controllerrevisions/ns/c", appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), &appsv1.ControllerRevision{ObjectMeta: in("c"), Revision: 3, Data: runtime.RawExtension{Raw: []byte(`{"a":"b"}`)}}},
			}
			fullKey := func(f fixture) string { return "/registry/" + f.key }
			for _, f := range fixtures {
				kinds, _, err := scheme.Scheme.ObjectKinds(f.obj)
				if err != nil {
					t.Fatal(err)
				}
				f.obj.GetObjectKind().SetGroupVersionKind(kinds[0])
				var data bytes.Buffer
				if err := codec.Encode(f.obj, &data); err != nil {
					t.Fatal(err)
				}
				stored := data.Bytes()
				if transformer := transformers.For(f.gvr.GroupResource()); transformer != nil {
					if stored, err = transformer.TransformToStorage(t.Context(), stored, value.DefaultContext(fullKey(f))); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := etcd.Put(t.Context(), fullKey(f), string(stored)); err != nil {
					t.Fatal(err)
				}
			}
			s := startServer(t, apiserver.Config{Etcd: etcd, Transformer: transformers.For})
			client := dynamic.NewForConfigOrDie(admin(s))
			for _, f := range fixtures {
				was, err := meta.Accessor(f.obj)
				if err != nil {
					t.Fatal(err)
				}
				way := client.Resource(f.gvr).Namespace(was.GetNamespace())
				got, err := way.Get(t.Context(), was.GetName(), metav1.GetOptions{})
				if err != nil {
					t.Errorf("%s: %v", f.key, err)
					continue
				}
				if list, err := way.List(t.Context(), metav1.ListOptions{LabelSelector: "by=upstream"}); err != nil || len(list.Items) != 1 {
					t.Errorf("%s: listed %v, %v", f.key, list, err)
				}
				if got.GetUID() != was.GetUID() || got.GetLabels()["by"] != "upstream" {
					t.Errorf("%s: %v", f.key, got)
				}
				unstructured.RemoveNestedField(got.Object, "metadata", "labels", "by")
				if _, err := way.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
					t.Errorf("%s: writing: %v", f.key, err)
					continue
				}
				resp, err := etcd.Get(t.Context(), fullKey(f))
				if err != nil || len(resp.Kvs) != 1 {
					t.Fatalf("%s: %v, %v", f.key, resp, err)
				}
				stored := resp.Kvs[0].Value
				secret := f.gvr.Resource == "secrets" || f.gvr.Resource == "configmaps"
				if prefix := "k8s:enc:" + provider + ":v1:k:"; provider != "identity" && secret != strings.HasPrefix(string(stored), prefix) {
					t.Errorf("%s: stored %.30q", f.key, stored)
				}
				plain := stored
				if transformer := transformers.For(f.gvr.GroupResource()); transformer != nil {
					if plain, _, err = transformer.TransformFromStorage(t.Context(), stored, value.DefaultContext(fullKey(f))); err != nil {
						t.Fatal(err)
					}
				}
				again, gvk, err := codec.Decode(plain, nil, nil)
				if err != nil || *gvk != f.obj.GetObjectKind().GroupVersionKind() {
					t.Errorf("%s: upstream reads a %v, %v", f.key, gvk, err)
					continue
				}
				now, err := meta.Accessor(again)
				if err != nil {
					t.Fatal(err)
				}
				if now.GetName() != was.GetName() || now.GetUID() != was.GetUID() || now.GetLabels()["by"] != "" || now.GetResourceVersion() != "" {
					t.Errorf("%s: upstream reads %v", f.key, now)
				}
				if cm, ok := again.(*corev1.ConfigMap); ok && !apiequality.Semantic.DeepEqual(cm.Data, f.obj.(*corev1.ConfigMap).Data) {
					t.Errorf("%s: upstream reads %v", f.key, cm.Data)
				}
			}
		})
	}
}
