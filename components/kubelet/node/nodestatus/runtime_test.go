package nodestatus

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestDownRuntime checks that a runtime that is down is reported in the node's status, and that no
// other calls are made to it.
func TestDownRuntime(t *testing.T) {
	runtime := crifake.New("busybox:1")
	k := New(Config{Name: "n", Kube: fake.NewClientset(), CRI: runtime.Client(), Status: Status{IPs: func() []string { return nil }, MaxImages: -1}})
	node := &v1.Node{}
	k.getRuntimeStatus(t.Context())
	k.setStatus(t.Context(), node, time.Now())
	if len(node.Status.Images) != 1 {
		t.Fatalf("%+v", node.Status.Images)
	}
	runtime.Fail("Status", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	before := len(runtime.Calls())
	k.getRuntimeStatus(t.Context())
	k.setStatus(t.Context(), node, time.Now())
	at := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
	if c := node.Status.Conditions[at]; c.Status != v1.ConditionFalse || !strings.Contains(c.Message, "container runtime is down") {
		t.Errorf("%+v", c)
	}
	if calls := runtime.Calls()[before:]; slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "ListImages") }) || len(node.Status.Images) != 1 {
		t.Errorf("calls %v, reported images %v", calls, node.Status.Images)
	}
}
