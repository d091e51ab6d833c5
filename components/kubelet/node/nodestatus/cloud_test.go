package nodestatus

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"hyperkube/internal/base/cloudprovider"
)

// TestExternalCloudProvider checks what the kubelet registers and reports if a cloud controller manager initializes the
// node.
func TestExternalCloudProvider(t *testing.T) {
	provided := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeHostName, Address: "n"}}
	cloud := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "192.0.2.1"}}
	for name, c := range map[string]struct {
		external  bool
		ips       []string
		addresses []v1.NodeAddress // of the Node after it was registered
		updated   []v1.NodeAddress // after the cloud controller manager has set the addresses cloud
	}{
		"no provider":                  {false, []string{"10.0.0.1"}, provided, provided},
		"external":                     {true, []string{"10.0.0.1"}, provided, cloud},
		"external, without an address": {true, nil, nil, cloud},
	} {
		cfg := Config{Name: "n", Kube: fake.NewClientset(), Status: Status{IPs: func() []string { return c.ips }}}
		if c.external {
			cfg.Registration = Registration{CloudProvider: cloudprovider.External, ProviderID: "cloud://1"}
		}
		k := New(cfg)
		k.runtime.down = "not needed"
		node := k.initial(t.Context())
		if !apiequality.Semantic.DeepEqual(node.Status.Addresses, c.addresses) {
			t.Errorf("%s: the Node has the addresses %v, want %v", name, node.Status.Addresses, c.addresses)
		}
		if cloudprovider.IsUninitialized(node) != c.external || (node.Spec.ProviderID == "cloud://1") != c.external {
			t.Errorf("%s: the Node has the taints %v and the provider ID %q", name, node.Spec.Taints, node.Spec.ProviderID)
		}
		want := ""
		if c.external && len(c.ips) > 0 {
			want = c.ips[0]
		}
		if got := node.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]; got != want {
			t.Errorf("%s: the annotation of the provided address is %q, want %q", name, got, want)
		}
		node.Status.Addresses = cloud
		k.setStatus(t.Context(), node, metav1.Now().Time)
		if !apiequality.Semantic.DeepEqual(node.Status.Addresses, c.updated) {
			t.Errorf("%s: an update changes the addresses to %v, want %v", name, node.Status.Addresses, c.updated)
		}
	}
}

// TestProvidedAddressRemoved checks that the annotation of the provided address is removed when the node registers again
// without an external cloud provider.
func TestProvidedAddressRemoved(t *testing.T) {
	found := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: "10.0.0.1"}}}
	k := New(Config{Name: "n", Kube: fake.NewClientset(found), Status: Status{IPs: func() []string { return nil }}})
	k.runtime.down = "not needed"
	got, err := k.reconcile(t.Context(), found, k.initial(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]; ok {
		t.Error("the Node still has the annotation")
	}
}
