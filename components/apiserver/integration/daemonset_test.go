package integration

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"hyperkube/components/apiserver"
)

const somethingEverywhere = `{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a", "annotations": {"deprecated.daemonset.template.generation": "abc"}},
"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}`

// TestTemplateGeneration tests the template generation of DaemonSets, which clients see as an
// annotation and upstream's server stores as a number. A client that does not set it still owns the
// field, and a value that is not a number is rejected.
func TestTemplateGeneration(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	kube, err := kubernetes.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	sets := kube.AppsV1().DaemonSets("default")
	refused := func(err error, code int32, want string) {
		t.Helper()
		status, ok := err.(interface{ Status() metav1.Status })
		if !ok || status.Status().Code != code || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, and not %d %s", err, code, want)
		}
	}
	const number = `strconv.ParseInt: parsing "abc": invalid syntax`
	_, err = sets.Patch(t.Context(), "a", types.ApplyPatchType, []byte(somethingEverywhere), metav1.PatchOptions{FieldManager: "m"})
	refused(err, 500, "failed to convert to unversioned (/a; apps/v1, Kind=DaemonSet): "+number)
	ds := &appsv1.DaemonSet{}
	if err := yaml.Unmarshal([]byte(somethingEverywhere), ds); err != nil {
		t.Fatal(err)
	}
	_, err = sets.Create(t.Context(), ds, metav1.CreateOptions{})
	refused(err, 400, `DaemonSet in version "v1" cannot be handled as a DaemonSet: `+number)
	ds.Annotations = nil
	made, err := sets.Create(t.Context(), ds, metav1.CreateOptions{FieldManager: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Annotations[appsv1.DeprecatedTemplateGeneration]; got != "1" {
		t.Errorf("the generation is %q", got)
	}
	const owned = `"f:annotations":{".":{},"f:deprecated.daemonset.template.generation":{}}`
	if fields := made.ManagedFields[0].FieldsV1.GetRawString(); !strings.Contains(fields, owned) {
		t.Errorf("who made it owns %s", fields)
	}
	patch := []byte(`{"metadata":{"annotations":{"deprecated.daemonset.template.generation":"abc"}}}`)
	_, err = sets.Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{})
	refused(err, 422, number)
	_, err = sets.Patch(t.Context(), "a", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	refused(err, 500, number)
}
