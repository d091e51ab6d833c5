package nodeipam

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/controllers/internal/controltest"
)

// TestSetAgainstModel compares the set with a simple list of prefixes.
func TestSetAgainstModel(t *testing.T) {
	for _, tc := range []struct {
		cluster string
		size    int
	}{{"10.244.0.0/16", 24}, {"10.0.0.0/20", 27}, {"fd00:10::/56", 64}, {"192.168.7.0/24", 24}} {
		r := rand.New(rand.NewPCG(1, 2))
		s, err := newSet(netip.MustParsePrefix(tc.cluster), tc.size)
		if err != nil {
			t.Fatal(err)
		}
		model := map[netip.Prefix]bool{}
		for range 3000 {
			switch r.IntN(3) {
			case 0, 1:
				p, err := s.allocate()
				if len(model) == s.count {
					if !errors.Is(err, errFull) {
						t.Fatalf("all parts are used, but got %s, %v", p, err)
					}
					continue
				}
				if err != nil || model[p] || p.Bits() != tc.size || p != p.Masked() || !s.cluster.Contains(p.Addr()) {
					t.Fatalf("%s: got %s, %v, already allocated: %v", tc.cluster, p, err, model[p])
				}
				model[p] = true
			case 2:
				for p := range model {
					s.release(p)
					delete(model, p)
					break
				}
			}
			if s.usedCount() != len(model) || s.free != s.count-len(model) {
				t.Fatalf("%d taken and %d free of %d, want %d taken", s.usedCount(), s.free, s.count, len(model))
			}
		}
	}
}

func TestSpan(t *testing.T) {
	s, err := newSet(netip.MustParsePrefix("10.244.0.0/16"), 24)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		p        string
		from, to int
	}{
		{"10.244.3.0/24", 3, 4}, {"10.244.3.128/25", 3, 4}, {"10.244.4.0/22", 4, 8}, {"10.0.0.0/8", 0, 256}, {"10.96.0.0/16", 0, 0}, {"fd00::/64", 0, 0},
	} {
		if from, to := s.span(netip.MustParsePrefix(tc.p)); from != tc.from || to != tc.to {
			t.Errorf("%s: %d-%d, want %d-%d", tc.p, from, to, tc.from, tc.to)
		}
	}
	if _, err := newSet(netip.MustParsePrefix("10.0.0.0/24"), 16); err == nil {
		t.Error("a node CIDR larger than the cluster CIDR was accepted")
	}
	if _, err := newSet(netip.MustParsePrefix("fd00::/32"), 64); err == nil {
		t.Error("a cluster CIDR with four billion parts was accepted")
	}
}

func TestController(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env, Config{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22"), netip.MustParsePrefix("fd00::/60")},
		Reserved:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00::/64"}}}
	f.Add(old)
	c.markUsed(old)
	sync := func(name string) []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, name); err != nil {
			t.Fatal(err)
		}
		n, err := f.Kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Spec.PodCIDRs
	}
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	want := []string{"10.244.2.0/24", "fd00:0:0:1::/64"}
	if got := sync("a"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// The cache does not contain the allocation yet; nothing else is allocated.
	if got := sync("a"); !slices.Equal(got, want) {
		t.Errorf("got %v the second time", got)
	}
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	if got := sync("b"); got[0] != "10.244.3.0/24" {
		t.Errorf("got %v", got)
	}
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	if err := controltest.Sync(t, c.Loop, "c"); !errors.Is(err, errFull) {
		t.Errorf("got %v from a full range", err)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Normal CIDRNotAvailable Node c status is now: CIDRNotAvailable" {
		t.Errorf("events %q", e)
	}
	// A deleted node releases its part, both halves.
	if err := f.Env.Informers.Core().V1().Nodes().Informer().GetIndexer().Delete(old); err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "old"); err != nil {
		t.Fatal(err)
	}
	if got := sync("c"); got[0] != "10.244.1.0/24" {
		t.Errorf("got %v", got)
	}
}

// TestStaleCache: the last allocation of the previous leader, which the cache does not contain yet,
// is not allocated again.
func TestStaleCache(t *testing.T) {
	f := controltest.New(t)
	ctx := context.Background()
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	given, err := f.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	given = given.DeepCopy()
	given.Spec.PodCIDR, given.Spec.PodCIDRs = "10.244.0.0/24", []string{"10.244.0.0/24"}
	if _, err := f.Kube.CoreV1().Nodes().Update(ctx, given, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := New(f.Env, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fresh.Close)
	if err := fresh.markExisting(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := fresh.allocate("b"); err != nil || got[0].String() == "10.244.0.0/24" {
		t.Errorf("a new leader allocates %v (%v), which node a has", got, err)
	}

	// The fake API server accepts what the real one rejects.
	f.Kube.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.PatchAction).GetName() != "a" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "a", nil)
	})
	c, err := New(f.Env, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.allocated["a"] = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}
	c.sets[0].markUsed(c.allocated["a"][0])
	if err := controltest.Sync(t, c.Loop, "a"); err != nil {
		t.Fatal(err)
	}
	if got := c.allocated["a"]; len(got) != 1 || got[0].String() != "10.244.0.0/24" {
		t.Errorf("a holds %v", got)
	}
	if free := c.sets[0].free; free != 3 {
		t.Errorf("%d parts are free, want 3", free)
	}
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	if err := controltest.Sync(t, c.Loop, "b"); err != nil {
		t.Fatal(err)
	}
	if got := c.allocated["b"]; got[0].String() == "10.244.0.0/24" {
		t.Error("b got the CIDR of a")
	}
}

// TestGivenByAnother: the CIDRs that a node has take precedence over its allocation.
func TestGivenByAnother(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.allocate("a"); err != nil {
		t.Fatal(err)
	}
	f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}})
	if err := controltest.Sync(t, c.Loop, "a"); err != nil {
		t.Fatal(err)
	}
	if got := c.allocated["a"]; len(got) != 1 || got[0].String() != "10.244.1.0/24" || c.sets[0].free != 3 {
		t.Errorf("a has %v, %d parts are free", got, c.sets[0].free)
	}
	if got, err := c.allocate("b"); err != nil || got[0].String() == "10.244.1.0/24" {
		t.Errorf("b gets %v (%v)", got, err)
	}
}

// TestLearnAgain: preparation is retried while the API server is unavailable.
func TestLearnAgain(t *testing.T) {
	f := controltest.New(t)
	informer := f.Env.Informers.Core().V1().Nodes().Informer()
	var refused atomic.Int32
	f.Kube.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !informer.HasSynced() || refused.Add(1) > 2 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewServiceUnavailable("away")
	})
	c, err := New(f.Env, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f.Env.Informers.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-c.Ready():
	case err := <-done:
		t.Fatalf("ended: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.Env.Informers.Shutdown()
	if n := refused.Load(); n < 3 {
		t.Errorf("%d list requests", n)
	}
}
