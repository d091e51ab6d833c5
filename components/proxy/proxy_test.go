package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/vishvananda/netlink"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testnetns"
	"hyperkube/internal/testing/testwait"
)

// TestTraffic sends real packets through real rules in a separate network namespace.
func TestTraffic(t *testing.T) {
	testnetns.Enter(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	outward := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "out1"}
	if err := netlink.LinkAdd(outward); err != nil {
		t.Fatal(err)
	}
	for cidr, link := range map[string]netlink.Link{"10.244.0.5/32": lo, "10.244.0.6/32": lo, "192.0.2.1/24": outward} {
		addr, _ := netlink.ParseAddr(cidr)
		if err := netlink.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	peer, err := netlink.LinkByName("out1")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(peer); err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.IPv4(192, 0, 2, 254), LinkIndex: outward.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"10.244.0.5", "10.244.0.6"} {
		listener, err := net.Listen("tcp", ip+":8080")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go testnetns.Serve(listener, func(string) string { return ip })
	}

	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.5"}, NodeName: new("n")}, {Addresses: []string{"10.244.0.6"}, NodeName: new("n")},
		},
	}
	kube := fake.NewClientset(svc, slice)
	factory := informers.NewSharedInformerFactory(kube, 0)
	journalPath := filepath.Join(t.TempDir(), "journal")
	journal, err := hostjournal.Open(journalPath)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{
		Clients: &client.Clients{Kube: kube, Informers: factory}, NodeName: "n",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, LocalhostNodePorts: true, Journal: journal,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()

	// The network namespace belongs to this thread, from which the proxy starts programs. So the
	// test runs each step itself instead of calling Run.
	for _, synced := range p.synced {
		<-synced.Done()
	}
	if err := p.routeLocalnet(); err != nil {
		t.Fatal(err)
	}
	// await waits until the informer has the given number of endpoints.
	await := func(endpoints int) {
		t.Helper()
		testwait.Until(t, fmt.Sprint(endpoints, " endpoints"), func() bool {
			have := 0
			for _, slice := range p.slicesOf("default/web") {
				have += len(slice.Endpoints)
			}
			return have == endpoints
		})
	}
	sync := func() {
		t.Helper()
		// Mark the service as changed, because touch may not have run yet.
		p.requeue(map[string]bool{"default/web": true})
		if err := p.sync(ctx, new(sync.WaitGroup)); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	for _, address := range []string{"10.96.0.7:80", "127.0.0.1:30080", "192.0.2.1:30080"} {
		seen := map[string]int{}
		for range 40 {
			seen[get(t, address)]++
		}
		if len(seen) != 2 {
			t.Errorf("%s: answers from %v, want both endpoints", address, seen)
		}
	}

	// After one endpoint is removed, all traffic goes to the other.
	slice = slice.DeepCopy()
	slice.Endpoints = slice.Endpoints[:1]
	if _, err := kube.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(1)
	sync()
	for range 20 {
		if got := get(t, "10.96.0.7:80"); got != "10.244.0.5" {
			t.Fatalf("answer from %s", got)
		}
	}

	// Without endpoints, connections are refused immediately.
	if err := kube.DiscoveryV1().EndpointSlices("default").Delete(ctx, "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(0)
	sync()
	if _, err := net.DialTimeout("tcp", "10.96.0.7:80", time.Minute); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("dialling a service without endpoints: %v", err)
	}

	// A new proxy takes over without duplicating the jumps.
	before := save(t)
	again := newWriter(Config{Journal: journal})
	if err := again.Sync(ctx, packetfilter.IPv4, rules.Build(p.rulesConfig(false, p.facts()), p.allPorts(false))); err != nil {
		t.Fatal(err)
	}
	if after := save(t); after != before {
		t.Errorf("after a restart\n%s\nwant\n%s", after, before)
	}
	journal.Close()
	if err := hostjournal.Undo(ctx, journalPath, packetfilter.Undo()); err != nil {
		t.Fatal(err)
	}
	if left := save(t); strings.Contains(left, "KUBE") {
		t.Errorf("left behind:\n%s", left)
	}
}

// save returns the rules without comments and counters.
func save(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("iptables-save")
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.SplitSeq(out.String(), "\n") {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, " [")
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func get(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEndpointChoice(t *testing.T) {
	// An endpoint is "host state hints". State is r(eady), t(erminating and serving), d(one:
	// terminating, not serving) or n(ot ready). Hints are zone=a or node=n.
	parse := func(i int, text string) discoveryv1.Endpoint {
		words := strings.Fields(text)
		c := discoveryv1.EndpointConditions{
			Ready: new(words[1] == "r"), Serving: new(words[1] == "r" || words[1] == "t"), Terminating: new(words[1] == "t" || words[1] == "d"),
		}
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}, NodeName: &words[0], Conditions: c}
		for _, hint := range words[2:] {
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			if name, ok := strings.CutPrefix(hint, "zone="); ok {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
			} else {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: strings.TrimPrefix(hint, "node=")})
			}
		}
		return e
	}
	for name, c := range map[string]struct {
		endpoints                []string
		anywhere, local, serving string
	}{
		"ready only":                            {[]string{"n r", "m r", "n d"}, "12", "1", "12"},
		"all go":                                {[]string{"n d", "m t", "n t"}, "23", "3", "23"},
		"not ready does not serve":              {[]string{"n n", "m n"}, "", "", ""},
		"one here terminating, ready elsewhere": {[]string{"n t", "m r"}, "2", "1", "12"},
		"here none, ready far off":              {[]string{"n d", "m r"}, "2", "", "2"},
		"none":                                  {[]string{"n d"}, "", "", ""},
		"zone":                                  {[]string{"n r zone=a", "m r zone=b", "m r zone=a"}, "13", "1", "123"},
		"zone of others":                        {[]string{"n r zone=c", "m r zone=b"}, "12", "1", "12"},
		"hints not for all":                     {[]string{"n r zone=a", "m r"}, "12", "1", "12"},
		"hints of those that go":                {[]string{"m r zone=a", "m r zone=a", "n t"}, "12", "3", "123"},
		"node":                                  {[]string{"n r zone=a node=n", "m r zone=a node=m"}, "1", "1", "12"},
		"node of others, zone":                  {[]string{"m r zone=a node=m", "m r zone=b node=k"}, "1", "", "12"},
		"local beyond topology":                 {[]string{"n r zone=b", "m r zone=a"}, "2", "1", "12"},
	} {
		slice := &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(80))}},
		}
		for i, text := range c.endpoints {
			slice.Endpoints = append(slice.Endpoints, parse(i, text))
		}
		anywhere, local, serving := endpointsOf([]*discoveryv1.EndpointSlice{slice}, &corev1.ServicePort{Protocol: corev1.ProtocolTCP}, node{"n", "a"}, false)
		var got [3]string
		last := func(a netip.AddrPort) string { return a.Addr().String()[len("10.0.0."):] }
		for _, e := range anywhere {
			got[0] += last(e.Address)
		}
		for _, e := range local {
			got[1] += last(e.Address)
		}
		for _, at := range serving {
			got[2] += last(at)
		}
		if want := [3]string{c.anywhere, c.local, c.serving}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestAddressHandedOn checks that an address shared by a terminating pod and a new pod belongs to
// the new pod, in any order.
func TestAddressHandedOn(t *testing.T) {
	of := func(ready, serving, terminating bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: new("n"), Conditions: discoveryv1.EndpointConditions{
				Ready: &ready, Serving: &serving, Terminating: &terminating,
			}}},
		}
	}
	goes, ready, starts := of(false, true, true), of(true, true, false), of(false, false, false)
	for name, c := range map[string]struct {
		list []*discoveryv1.EndpointSlice
		want int
	}{
		"ready last":  {[]*discoveryv1.EndpointSlice{goes, ready}, 1},
		"ready first": {[]*discoveryv1.EndpointSlice{ready, goes}, 1},
		"not ready":   {[]*discoveryv1.EndpointSlice{goes, starts}, 0},
	} {
		other := of(true, true, false)
		other.Endpoints[0].Addresses, other.Endpoints[0].NodeName = []string{"10.0.0.2"}, new("m")
		_, local, serving := endpointsOf(append(c.list, other), &corev1.ServicePort{Protocol: corev1.ProtocolTCP}, node{"n", ""}, false)
		anywhere, _, _ := endpointsOf(append(c.list, other), &corev1.ServicePort{Protocol: corev1.ProtocolTCP}, node{"n", ""}, false)
		if len(local) != c.want || len(anywhere) != c.want+1 || len(serving) != c.want+1 {
			t.Errorf("%s: %v here, %v anywhere, %v serve", name, local, anywhere, serving)
		}
	}
}

// TestLabels checks that services with the label of another proxy and slices with the headless
// label are ignored, whatever the label values are.
func TestLabels(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(80))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	for name, c := range map[string]struct {
		service, slice   map[string]string
		ports, endpoints int
	}{
		"none":           {nil, nil, 1, 1},
		"headless slice": {nil, map[string]string{corev1.IsHeadlessService: ""}, 1, 0},
		"other proxy":    {map[string]string{labelProxyName: ""}, nil, 0, 0},
		"slice of other": {nil, map[string]string{labelProxyName: "x"}, 1, 1},
	} {
		svc.Labels, slice.Labels = c.service, c.slice
		ports := portsOf(svc, []*discoveryv1.EndpointSlice{slice}, node{"n", ""}, false)
		endpoints := 0
		for _, p := range ports {
			endpoints += len(p.Endpoints)
		}
		if len(ports) != c.ports || endpoints != c.endpoints {
			t.Errorf("%s: %d ports, %d endpoints; want %d and %d", name, len(ports), endpoints, c.ports, c.endpoints)
		}
	}
}
