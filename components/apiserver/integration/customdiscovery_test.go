package integration

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"hyperkube/components/apiserver"
)

// TestDiscoveryAfterEstablished checks that a client can change a definition as soon as discovery
// includes it: the server must not write the definition after that.
func TestDiscoveryAfterEstablished(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	disco, err := discovery.NewDiscoveryClientForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for i := range 20 {
		group := fmt.Sprintf("early%d.example.com", i)
		made, err := objects.Resource(definitions).Create(ctx, object(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.`+group+`}
spec:
  group: `+group+`
  scope: Namespaced
  names: {plural: things, kind: Thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			list, err := disco.ServerResourcesForGroupVersion(group + "/v1")
			if err == nil && len(list.APIResources) > 0 {
				break
			}
			if err != nil && !apierrors.IsNotFound(err) || ctx.Err() != nil {
				t.Fatalf("discovery: %v", err)
			}
		}
		now, err := objects.Resource(definitions).Get(ctx, made.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !established(now) {
			t.Fatalf("discovery includes definition %d with conditions %v", i, now.Object["status"])
		}
	}
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}
