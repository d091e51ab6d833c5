package namespace

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/controllers/internal/controltest"
)

func meta(kind, name string, finalizers ...string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Finalizers: finalizers},
	}
}

func TestDelete(t *testing.T) {
	all := metav1.Verbs{"delete", "deletecollection", "list"}
	lists := []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: all},
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: all},
		{Name: "nodes", Kind: "Node", Verbs: all},
		{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
	}}}
	for _, tc := range []struct {
		name     string
		content  []runtime.Object
		deletes  []string // resources whose collections are deleted
		finished bool
		cond     corev1.NamespaceConditionType
		message  string
		// refuse is a verb of configmaps for which the API server returns an error.
		refuse string
	}{
		{name: "empty", deletes: []string{"pods", "configmaps"}, finished: true},
		{name: "cannot be listed", deletes: []string{"pods", "configmaps"}, finished: true, refuse: "list"},
		{name: "cannot be deleted", content: []runtime.Object{meta("ConfigMap", "c", "x/y")}, deletes: []string{"pods"}, refuse: "delete",
			cond: corev1.NamespaceContentRemaining, message: "Some resources are remaining: configmaps. has 1 resource instances"},
		{name: "pods first", content: []runtime.Object{meta("Pod", "p", "x/y"), meta("ConfigMap", "c")}, deletes: []string{"pods"},
			cond: corev1.NamespaceContentRemaining, message: "Some resources are remaining: pods. has 1 resource instances"},
		{name: "with finalizers", content: []runtime.Object{meta("ConfigMap", "c", "x/y")}, deletes: []string{"pods", "configmaps"},
			cond: corev1.NamespaceFinalizersRemaining, message: "Some content in the namespace has finalizers remaining: x/y in 1 resource instances"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := metav1.NewTime(controltest.Now)
			ns := &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "u", DeletionTimestamp: &now, Finalizers: []string{"keep"}},
				Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			}
			f := controltest.New(t, ns)
			scheme := metadatafake.NewTestScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			md := metadatafake.NewSimpleMetadataClient(scheme, tc.content...)
			var deleted []string
			md.PrependReactor("delete-collection", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				deleted = append(deleted, a.GetResource().Resource)
				return true, nil, nil
			})
			md.PrependReactor("*", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if tc.refuse == "" || !strings.HasPrefix(a.GetVerb(), tc.refuse) {
					return false, nil, nil
				}
				return true, nil, apierrors.NewMethodNotSupported(a.GetResource().GroupResource(), a.GetVerb())
			})
			finalized := false
			f.Kube.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
				finalized = finalized || a.GetSubresource() == "finalize"
				return true, ns, nil
			})
			c, err := New(f.Env, Config{Discovery: &fake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: lists}}, Metadata: md})
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, "ns"); err != nil {
				t.Fatal(err)
			}
			slices.Sort(deleted)
			slices.Sort(tc.deletes)
			if !slices.Equal(deleted, tc.deletes) {
				t.Errorf("deleted %v, want %v", deleted, tc.deletes)
			}
			if finalized != tc.finished {
				t.Errorf("finalized %v", finalized)
			}
			live, err := f.Kube.CoreV1().Namespaces().Get(context.Background(), "ns", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if live.Status.Phase != corev1.NamespaceTerminating || len(live.Status.Conditions) != 5 {
				t.Errorf("status %+v", live.Status)
			}
			for _, cond := range live.Status.Conditions {
				bad := tc.cond == cond.Type
				if bad && (cond.Status != corev1.ConditionTrue || cond.Message != tc.message) {
					t.Errorf("condition %+v", cond)
				}
				if tc.cond == "" && cond.Status != corev1.ConditionFalse {
					t.Errorf("condition %+v", cond)
				}
			}
		})
	}
}
