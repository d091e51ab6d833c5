package pods

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestSilentRuntime: a node whose runtime does not answer what it is asked of a pod is
// not ready, and is again as soon as it answers, be it with an error.
func TestSilentRuntime(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.runtime.Fail("ListPodSandbox", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	b.add(newPod("a", nil))
	soon, late := func() time.Time { return time.Now().Add(longestLook / 2) }, func() time.Time { return time.Now().Add(2 * longestLook) }
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never %s: %v", what, b.manager.Silent(late()))
			}
		}
	}
	await("silent", func() bool { return b.manager.Silent(late()) != nil })
	if err := b.manager.Silent(soon()); err != nil {
		t.Errorf("too soon: %v", err)
	}
	if err := b.manager.Silent(late()); !strings.HasPrefix(err.Error(), "PLEG is not healthy: pleg was last seen active ") || !strings.HasSuffix(err.Error(), " ago; threshold is 3m0s") {
		t.Error(err)
	}
	b.runtime.Fail("ListPodSandbox", status.Error(codes.Unknown, "broken"))
	await("broken", func() bool { return b.manager.Silent(late()) == nil })
	b.runtime.Fail("ListPodSandbox", nil)
	b.await("a", "ready", ready)
}
