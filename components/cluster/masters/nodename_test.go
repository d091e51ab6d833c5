package masters

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestNameIsFree: nobody joins by the name of another machine that is there.
func TestNameIsFree(t *testing.T) {
	node := func(name, address string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
	}
	kube := fake.NewClientset(
		node("there", "192.0.2.1", corev1.ConditionTrue), node("gone", "192.0.2.1", corev1.ConditionUnknown), node("back", "192.0.2.2", corev1.ConditionTrue),
	)
	own := []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	for name, refused := range map[string]bool{"there": true, "gone": false, "back": false, "new": false} {
		err := checkNameFree(context.Background(), kube, name, own)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), `a Node with name "there" and status "Ready" already exists`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		answer error
		fine   bool
	}{
		{apierrors.NewForbidden(corev1.Resource("nodes"), "new", nil), true},
		{errors.New("no way there"), false},
	} {
		kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
		if err := checkNameFree(context.Background(), kube, "new", own); (err == nil) != c.fine {
			t.Errorf("the answer %v: %v", c.answer, err)
		}
	}
}

// TestTokenIsGone: who joins with a token that was deleted meanwhile is told what to do.
func TestTokenIsGone(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewUnauthorized("Unauthorized")
	})
	if _, _, err := clusterLike(context.Background(), kube); err == nil || !strings.Contains(err.Error(), "does not know the token") || !strings.Contains(err.Error(), "token create") {
		t.Errorf("told %v", err)
	}
}
