package policy

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	fakemetadata "k8s.io/client-go/metadata/fake"

	"hyperkube/internal/testing/testwait"
)

// TestWatchClusterPolicies checks that policies are read while their definition exists, in the order of their precedence.
func TestWatchClusterPolicies(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	meta := fakemetadata.NewSimpleMetadataClient(scheme)
	dyn := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{clusterPolicyResource: "ClusterNetworkPolicyList"})
	changes := make(chan struct{}, 100)
	c, err := newClusterPolicies(meta, dyn, func() { changes <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	<-c.Done()
	if got := c.list(); len(got) > 0 {
		t.Errorf("without a definition there are %v", got)
	}
	for name, priority := range map[string]int64{"late": 20, "b": 10, "a": 10} {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"tier": "Admin", "priority": priority, "subject": map[string]any{"namespaces": map[string]any{}}},
		}}
		if _, err := dyn.Resource(clusterPolicyResource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	definition := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}, ObjectMeta: metav1.ObjectMeta{Name: definitionName}}
	if err := meta.Tracker().Create(definitionResource, definition, ""); err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		var out []string
		for _, p := range c.list() {
			out = append(out, p.Name)
		}
		return out
	}
	testwait.Until(t, "policies", func() bool { return slices.Equal(names(), []string{"a", "b", "late"}) })
	<-changes
	if err := meta.Tracker().Delete(definitionResource, "", definitionName); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "no policies without the definition", func() bool { return len(c.list()) == 0 })
}
