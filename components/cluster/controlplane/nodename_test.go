package controlplane

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

// TestCheckNameFree: a machine cannot join with the name of another machine whose node is ready.
func TestCheckNameFree(t *testing.T) {
	node := func(name, address string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
	}
	kube := fake.NewClientset(
		node("ready", "192.0.2.1", corev1.ConditionTrue), node("unready", "192.0.2.1", corev1.ConditionUnknown), node("rejoining", "192.0.2.2", corev1.ConditionTrue),
	)
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	for name, refused := range map[string]bool{"ready": true, "unready": false, "rejoining": false, "new": false} {
		err := checkNameFree(context.Background(), kube, name, addresses)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), `a Node with name "ready" and status "Ready" already exists`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		response error
		valid    bool
	}{
		{apierrors.NewForbidden(corev1.Resource("nodes"), "new", nil), true},
		{errors.New("unreachable"), false},
	} {
		kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.response })
		if err := checkNameFree(context.Background(), kube, "new", addresses); (err == nil) != c.valid {
			t.Errorf("response %v: %v", c.response, err)
		}
	}
}

// TestDeletedToken: joining with a deleted token prints the command that creates a new one.
func TestDeletedToken(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewUnauthorized("Unauthorized")
	})
	if _, _, err := readClusterConfiguration(context.Background(), kube); err == nil || !strings.Contains(err.Error(), "token for TLS bootstrap is not valid") || !strings.Contains(err.Error(), "token create") {
		t.Errorf("error %v", err)
	}
}
