package network

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/testing/testnetns"
)

// TestMissedRoutes checks that the network syncs and watches again after route events were lost.
func TestMissedRoutes(t *testing.T) {
	kube := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "self"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "peer"}},
	)
	factory := informers.NewSharedInformerFactory(kube, 0)
	n, err := New(Config{
		NodeName: "self", Nodes: factory.Core().V1().Nodes().Informer(), Kube: kube, Bridge: "none-br0", Tunnel: "none-vxlan", WireGuard: "none-wg", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards the variables below
	watched, applied := 0, 0
	again := make(chan int, 1)
	n.watch = func(ctx context.Context) (<-chan struct{}, error) {
		mu.Lock()
		defer mu.Unlock()
		watched++
		routes := make(chan struct{})
		if watched == 1 {
			close(routes) // the subscription overflowed
			return routes, nil
		}
		context.AfterFunc(ctx, func() { close(routes) })
		again <- applied
		return routes, nil
	}
	looked := make(chan struct{}, 100)
	n.apply = func(context.Context, member, plan) error {
		mu.Lock()
		defer mu.Unlock()
		applied++
		looked <- struct{}{}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case before := <-again:
		for range before {
			<-looked
		}
		select {
		case <-looked:
		case <-time.After(time.Minute):
			t.Error("the routes are not looked at")
		}
	case <-time.After(time.Minute):
		t.Error("the routes are not watched any more")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWatchLinks checks that the network notices when another program sets a tunnel link down or deletes
// it.
func TestWatchLinks(t *testing.T) {
	testnetns.Enter(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := &Network{cfg: Config{Tunnel: "hk-vxlan", WireGuard: "hk-wg", Log: slog.Default()}}
	// The test cannot create a WireGuard link on every machine, so bridges have the names.
	link := func(name string) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		l := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	vxlan, wireGuard := link("hk-vxlan"), link("hk-wg")
	events, err := n.watchHost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"setting hk-vxlan down", func() error { return netlink.LinkSetDown(vxlan) }},
		{"deleting hk-vxlan", func() error { return netlink.LinkDel(vxlan) }},
		{"deleting hk-wg", func() error { return netlink.LinkDel(wireGuard) }},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-events:
		case <-time.After(time.Minute):
			t.Fatalf("no event after %s", change.what)
		}
	}
	cancel()
	for range events { // the channel is closed
	}
}
