package up

import (
	"context"
	"errors"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/host/layout"
)

// TestIncompleteRemoval checks that an additional node is listed until its removal is
// complete.
func TestIncompleteRemoval(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("creates a network namespace")
	}
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Numbered(1).Data, 0o755); err != nil {
		t.Fatal(err)
	}
	kube, refuse := fake.NewClientset(), true
	kube.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refuse {
			return true, nil, errors.New("not now")
		}
		return false, nil, nil
	})
	f := nodeManager{layout: l, cluster: clusterconfig.Cluster{NodeName: "n"}, desired: additionalNodes{Count: 1}, kube: kube, steps: progress.New(func(progress.Step) {})}
	if err := f.ensure(context.Background()); err == nil {
		t.Fatal("node removed without the API server")
	}
	if left, err := teardown.AdditionalNodeNumbers(l); err != nil || len(left) != 1 {
		t.Fatalf("listed nodes %v, %v", left, err)
	}
	refuse = false
	if err := f.ensure(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left, err := teardown.AdditionalNodeNumbers(l); err != nil || len(left) != 0 {
		t.Errorf("listed nodes %v, %v", left, err)
	}
}
