package up

import (
	"context"
	"errors"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/layout"
)

// A further node whose removal was broken off is known until all of it is done.
func TestRemovalThatIsBrokenOff(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes a network namespace")
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
	f := fleet{layout: l, identity: identity.Cluster{NodeName: "n"}, wish: furtherNodes{Count: 1}, kube: kube, steps: progress.New(func(progress.Step) {})}
	if err := f.ensure(context.Background()); err == nil {
		t.Fatal("a node was removed without the API server")
	}
	if left, err := teardown.FurtherNumbers(l); err != nil || len(left) != 1 {
		t.Fatalf("%v are left of the node, %v", left, err)
	}
	refuse = false
	if err := f.ensure(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left, err := teardown.FurtherNumbers(l); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
