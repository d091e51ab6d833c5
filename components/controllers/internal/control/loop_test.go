package control

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestRetries: a key that failed is tried again, unless that does not help.
func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"done":   {nil, 0},
		"failed": {errors.New("no"), 1},
		"stale":  {fmt.Errorf("of pods: %w", ErrStale), 1},
		"waits":  {fmt.Errorf("for a CIDR: %w", ErrWaits), 0},
	} {
		kube := fake.NewClientset()
		l := NewLoop(Env{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, "test", func(context.Context, string) error { return c.err })
		l.Add("key")
		if !l.next(t.Context(), l.measured()) {
			t.Errorf("%s: the loop has ended", name)
		}
		if n := l.queue.NumRequeues("key"); n != c.want {
			t.Errorf("%s: to be tried again %d times, want %d", name, n, c.want)
		}
		l.queue.ShutDown()
	}
}
