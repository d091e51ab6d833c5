package nodeipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

// TestExhausted: Nodes without a CIDR get one event and wait for a released CIDR; then as many Nodes
// get one as were released.
func TestExhausted(t *testing.T) {
	f := controltest.New(t)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}})
	}
	c, err := New(f.Env, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23"), netip.MustParsePrefix("fd00::/63")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	nodes := f.Kube.CoreV1().Nodes()
	drain := func() {
		t.Helper()
		for c.Len() > 0 {
			if err := c.Drain(context.Background()); err != nil && !errors.Is(err, control.ErrNoRetry) {
				t.Fatal(err)
			}
			f.Observe(corev1.SchemeGroupVersion.WithKind("Node"))
		}
	}
	given := func() (out []string) {
		t.Helper()
		list, err := nodes.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if n := &list.Items[i]; len(n.Spec.PodCIDRs) == 2 {
				out = append(out, n.Name)
			}
		}
		return out
	}
	remove := func(name string) {
		t.Helper()
		if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Observe(corev1.SchemeGroupVersion.WithKind("Node"))
		c.Add(name)
		drain()
	}
	for _, name := range names {
		c.Add(name)
	}
	drain()
	if got := given(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("%v have CIDRs", got)
	}
	if n := controltest.Count(f.Recorded(), "Normal CIDRNotAvailable"); n != 3 {
		t.Errorf("%d events of Nodes without CIDRs, want 3", n)
	}
	// A waiting Node is deleted, which releases no CIDR.
	remove("c")
	if got := given(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v have CIDRs", got)
	}
	remove("a")
	if got := given(); len(got) != 2 || got[0] != "b" {
		t.Errorf("%v have CIDRs", got)
	}
	remove("b")
	if got := given(); !slices.Equal(got, []string{"d", "e"}) {
		t.Errorf("%v have CIDRs", got)
	}
	if recorded := f.Recorded(); len(recorded) > 0 {
		t.Errorf("events %q", recorded)
	}
	if c.Len() != 0 || len(c.waiting) != 0 {
		t.Errorf("%d Nodes enqueued, %v waiting", c.Len(), c.waiting)
	}
}

// TestSharedCIDRStaysUsed: a CIDR that two Nodes have, or that is reserved, is not released when
// one Node is deleted.
func TestSharedCIDRStaysUsed(t *testing.T) {
	node := func(name string, cidrs ...string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	}
	c, err := New(controltest.New(t).Env, Config{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/22")},
		Reserved:     []netip.Prefix{netip.MustParsePrefix("10.0.3.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.markUsed(node("a", "10.0.0.0/24"))
	c.markUsed(node("b", "10.0.0.0/24"))
	c.markUsed(node("c", "10.0.2.0/23"))
	c.release("a")
	c.release("c")
	var got []string
	for _, name := range []string{"d", "e"} {
		cidrs, err := c.allocate(name)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, cidrs[0].String())
	}
	if want := []string{"10.0.1.0/24", "10.0.2.0/24"}; !slices.Equal(got, want) {
		t.Errorf("allocated %v, want %v", got, want)
	}
	if _, err := c.allocate("f"); err == nil {
		t.Error("another CIDR is free")
	}
	c.release("b")
	if cidrs, err := c.allocate("f"); err != nil || cidrs[0].String() != "10.0.0.0/24" {
		t.Errorf("%v, %v: the CIDR is free", cidrs, err)
	}
}

// TestPartialCIDRs: a range of which several Nodes have parts is released when the last of them is
// deleted.
func TestPartialCIDRs(t *testing.T) {
	c, err := New(controltest.New(t).Env, Config{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23")},
		Reserved:     []netip.Prefix{netip.MustParsePrefix("10.0.1.0/25")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for name, cidr := range map[string]string{"a": "10.0.0.0/25", "b": "10.0.0.128/25", "c": "10.0.1.128/25"} {
		c.markUsed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}}})
	}
	for _, gone := range []string{"c", "a"} {
		c.release(gone)
		if cidrs, err := c.allocate("d"); err == nil {
			t.Fatalf("after the deletion of %s, %v is allocated", gone, cidrs)
		}
	}
	c.release("b")
	if cidrs, err := c.allocate("d"); err != nil || cidrs[0].String() != "10.0.0.0/24" {
		t.Errorf("%v, %v: all parts of the CIDR are free", cidrs, err)
	}
}
