package catalog

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// notResources contains kinds that are not resources, and where they are used.
var notResources = map[string]string{
	"/Binding":                              "pods/binding",
	"/NodeProxyOptions":                     "options",
	"/PodAttachOptions":                     "options",
	"/PodExecOptions":                       "options",
	"/PodLogOptions":                        "options",
	"/PodPortForwardOptions":                "options",
	"/PodProxyOptions":                      "options",
	"/PodStatusResult":                      "not served",
	"/RangeAllocation":                      "only written to etcd by upstream's allocators",
	"/SerializedReference":                  "an annotation",
	"/ServiceProxyOptions":                  "options",
	"admission.k8s.io/AdmissionReview":      "sent to webhooks",
	"authentication.k8s.io/TokenRequest":    "serviceaccounts/token",
	"autoscaling/Scale":                     "the scale subresource",
	"policy/Eviction":                       "pods/eviction",
	"apidiscovery.k8s.io/APIGroupDiscovery": "aggregated discovery",
}

// TestEveryStableKindIsServed compares the catalog with the published types, so that new kinds are
// noticed when the libraries are updated.
func TestEveryStableKindIsServed(t *testing.T) {
	served := map[schema.GroupVersionKind]bool{}
	for _, r := range Resources() {
		if served[r.GVK()] {
			t.Errorf("%s is duplicated", r.GVK())
		}
		served[r.GVK()] = true
	}
	found := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version != "v1" && gvk.Version != "v2" || served[gvk] || gvk.Group == "" && gvk.Kind == "List" {
			continue
		}
		obj, err := scheme.Scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		if gvk.Kind == "WatchEvent" || gvk.Kind == "Status" || strings.HasPrefix(gvk.Kind, "API") && gvk.Group == "" || slices.Contains([]string{"CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions"}, gvk.Kind) {
			continue
		}
		if _, ok := obj.(metav1.ListInterface); ok || meta.IsListType(obj) {
			continue
		}
		if notResources[gvk.Group+"/"+gvk.Kind] != "" {
			continue
		}
		found++
		t.Errorf("%s is not served", gvk)
	}
	if found > 0 {
		t.Logf("%d kinds are missing", found)
	}
}
