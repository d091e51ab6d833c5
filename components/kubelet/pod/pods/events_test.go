package pods

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestSilentRuntime checks that a node is not ready while its runtime does not respond to calls
// about a pod, and is ready again as soon as the runtime responds, even with an error.
func TestSilentRuntime(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.runtime.Fail("ListPodSandbox", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	b.add(newPod("a", nil))
	soon, late := func() time.Time { return time.Now().Add(runtimeResponseThreshold / 2) }, func() time.Time { return time.Now().Add(2 * runtimeResponseThreshold) }
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s: %v", what, b.registry.RuntimeUnresponsive(late()))
			}
		}
	}
	await("silent", func() bool { return b.registry.RuntimeUnresponsive(late()) != nil })
	if err := b.registry.RuntimeUnresponsive(soon()); err != nil {
		t.Errorf("too early: %v", err)
	}
	if err := b.registry.RuntimeUnresponsive(late()); !strings.HasPrefix(err.Error(), "PLEG is not healthy: pleg was last seen active ") || !strings.HasSuffix(err.Error(), " ago; threshold is 3m0s") {
		t.Error(err)
	}
	b.runtime.Fail("ListPodSandbox", status.Error(codes.Unknown, "broken"))
	await("broken", func() bool { return b.registry.RuntimeUnresponsive(late()) == nil })
	b.runtime.Fail("ListPodSandbox", nil)
	b.await("a", "ready", ready)
}
