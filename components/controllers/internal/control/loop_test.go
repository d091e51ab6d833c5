package control

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestRetries: a key whose sync failed is retried, unless the error is ErrNoRetry.
func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"done":   {nil, 0},
		"failed": {errors.New("no"), 1},
		"stale":  {fmt.Errorf("of pods: %w", ErrStale), 1},
		"waits":  {fmt.Errorf("for a CIDR: %w", ErrNoRetry), 0},
	} {
		kube := fake.NewClientset()
		l := NewLoop(Env{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, "test", func(context.Context, string) error { return c.err })
		l.Add("key")
		if !l.next(t.Context(), l.newWorkerMetrics()) {
			t.Errorf("%s: the loop has stopped", name)
		}
		if n := l.queue.NumRequeues("key"); n != c.want {
			t.Errorf("%s: %d retries, want %d", name, n, c.want)
		}
		l.queue.ShutDown()
	}
}
