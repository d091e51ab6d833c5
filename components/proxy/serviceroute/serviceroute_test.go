package serviceroute

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/testing/testnetns"
)

func TestKeeper(t *testing.T) {
	// netlink opens its sockets in the network namespace of the calling thread. So the loop of Run
	// is tested by the cluster tests.
	testnetns.Enter(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "hkt-br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}},
	}), 0)
	k, err := New(Config{CIDRs: factory.Networking().V1().ServiceCIDRs().Informer(), Bridge: "hkt-br0", Journal: journal})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	// Without an address on the bridge there is no source address, so no route is added.
	ranges := k.ranges()
	if len(ranges) != 2 {
		t.Fatalf("ranges are %v", ranges)
	}
	if err := k.ensure(ranges); err != nil {
		t.Fatal(err)
	}
	service := net.IPv4(10, 96, 0, 10)
	if _, err := netlink.RouteGet(service); err == nil {
		t.Fatal("there is a route already")
	}
	addr, _ := netlink.ParseAddr("10.244.0.1/24")
	if err := netlink.AddrAdd(bridge, addr); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := k.ensure(ranges); err != nil {
			t.Fatal(err)
		}
	}
	routes, err := netlink.RouteGet(service)
	if err != nil || len(routes) != 1 || routes[0].LinkIndex != bridge.Index || !routes[0].Src.Equal(addr.IP) {
		t.Fatalf("the way to a service is %v, %v", routes, err)
	}
	changes, err := hostjournal.Read(path)
	want := hostjournal.Change{Kind: hostjournal.Route, Name: "10.96.0.0/16", Before: "hkt-br0"}
	if err != nil || len(changes) != 1 || changes[0].Name != want.Name || changes[0].Before != want.Before || changes[0].Kind != want.Kind {
		t.Errorf("recorded %v, %v", changes, err)
	}
	if err := hostjournal.Undo(context.Background(), path, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.RouteGet(service); err == nil {
		t.Error("the route still exists after it was reverted")
	}
	// With a default route, no route is added.
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: bridge.Index, Gw: net.IPv4(10, 244, 0, 9)}); err != nil {
		t.Fatal(err)
	}
	if err := k.ensure(ranges[:1]); err != nil {
		t.Fatal(err)
	}
	found, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}}, netlink.RT_FILTER_DST)
	if err != nil || len(found) != 0 {
		t.Errorf("routes made though there is a default one: %v, %v", found, err)
	}
}
