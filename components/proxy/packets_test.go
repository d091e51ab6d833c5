package proxy

import (
	"context"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testnetns"
)

// bench consists of a node and a client, each in a network namespace. The goroutine of the test
// runs on the node; functions passed to At run on the client.
type bench struct {
	*testnetns.Namespace
	t      testing.TB
	writer *packetfilter.Writer
	// translator contains ports, which build has set.
	translator rules.Translator
	ports      []*rules.Port
}

const (
	clientIP  = "192.0.2.2"
	nodeIP    = "192.0.2.1"
	otherIP   = "198.51.100.1" // another address of the node
	balancer  = "203.0.113.9"
	here      = "10.244.0.5" // an endpoint on this node
	elsewhere = "10.244.1.5" // an endpoint that is marked as being on another node
)

// eachMode runs a test in each mode of the packet filter.
func eachMode(t *testing.T, test func(t *testing.T, mode packetfilter.Mode)) {
	for _, mode := range []packetfilter.Mode{packetfilter.IPTables, packetfilter.NFTables} {
		t.Run(string(mode), func(t *testing.T) { test(t, mode) })
	}
}

func newBench(t testing.TB, mode packetfilter.Mode) *bench {
	t.Helper()
	testnetns.Enter(t)
	b := &bench{t: t, Namespace: testnetns.New(t)}
	b.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "n0"}, PeerName: "c0", PeerNamespace: netlink.NsPid(b.Thread())}))
	up(b, "lo", here+"/32", elsewhere+"/32")
	up(b, "n0", nodeIP+"/24", otherIP+"/32")
	b.Run(func() {
		up(b, "lo")
		up(b, "c0", clientIP+"/24")
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		b.must(netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(nodeIP)}))
	})
	b.must(netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP(clientIP)}))
	for _, path := range []string{"ip_forward", "conf/all/route_localnet"} {
		b.must(os.WriteFile("/proc/sys/net/ipv4/"+path, []byte("1"), 0o644))
	}
	for _, ip := range []string{here, elsewhere} {
		listener, err := net.Listen("tcp", ip+":8080")
		b.must(err)
		t.Cleanup(func() { listener.Close() })
		go testnetns.Serve(listener, func(caller string) string { return ip + " to " + caller })
		packets, err := net.ListenPacket("udp", ip+":8080")
		b.must(err)
		t.Cleanup(func() { packets.Close() })
		go func() {
			buffer := make([]byte, 64)
			for {
				n, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo([]byte(ip+" to "+string(buffer[:n])), from)
			}
		}()
	}
	b.writer, b.translator = newWriter(Config{SyncPeriod: time.Hour, PacketFilter: mode}), rules.NewTranslator(mode)
	return b
}

// build returns the rules of ports, which replace those of the last call.
func (b *bench) build(cfg rules.Config, ports []*rules.Port) packetfilter.Ruleset {
	b.translator.Replace(b.ports, ports)
	b.ports = ports
	return b.translator.Build(cfg)
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write writes the rules of the node.
func (b *bench) write(set packetfilter.Ruleset) {
	b.t.Helper()
	b.must(b.writer.Sync(context.Background(), packetfilter.IPv4, set))
}

func up(b *bench, name string, addresses ...string) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		b.t.Error(err)
		return
	}
	for _, text := range addresses {
		addr, _ := netlink.ParseAddr(text)
		addr.Flags = unix.IFA_F_NODAD // usable immediately
		if err := netlink.AddrAdd(link, addr); err != nil {
			b.t.Error(err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		b.t.Error(err)
	}
}

// ask connects to an address and returns the response "ENDPOINT to SOURCE", or "refused", or
// "silence" after a short timeout.
func ask(address string) string {
	conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
	switch {
	case err != nil && strings.Contains(err.Error(), "refused"):
		return "refused"
	case err != nil:
		return "silence"
	}
	defer conn.Close()
	data, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// expect calls ask until the response has the prefix want, for at most a minute. An expected
// silence is checked once.
func (b *bench) expect(what, address, want string) {
	b.t.Helper()
	got := ask(address)
	for end := time.Now().Add(time.Minute); got == "silence" && want != got && time.Now().Before(end); {
		got = ask(address)
	}
	if !strings.HasPrefix(got, want) {
		b.t.Errorf("%s: %s answers %q, want %q", what, address, got, want)
	}
}

func service(change func(*corev1.ServiceSpec)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: balancer}}}},
	}
	change(&svc.Spec)
	return svc
}

// slice returns an EndpointSlice with the endpoints "here" and "elsewhere". Each is ready, or
// terminating and serving if it has the suffix "-".
func slice(protocol corev1.Protocol, endpoints ...string) []*discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Protocol: &protocol, Port: new(int32(8080))}},
	}
	for _, e := range endpoints {
		ip, going := strings.CutSuffix(e, "-")
		nodeName := "other"
		if ip == here {
			nodeName = "n"
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &nodeName, Conditions: discoveryv1.EndpointConditions{
			Ready: new(!going), Serving: new(true), Terminating: &going,
		}})
	}
	return []*discoveryv1.EndpointSlice{s}
}

var clusterPods = rules.FromRange(netip.MustParsePrefix("10.244.0.0/16"))

// TestPackets sends packets from the node and from the client, and checks that the endpoint is
// chosen according to the policies of the service, as by upstream's proxy.
func TestPackets(t *testing.T) { eachMode(t, testPackets) }

func testPackets(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	local, cluster := corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster
	internalLocal := corev1.ServiceInternalTrafficPolicyLocal
	external := func(p corev1.ServiceExternalTrafficPolicy) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = p }
	}
	const nodePort, clusterIP, balanced = nodeIP + ":30080", "10.96.0.7:80", balancer + ":80"
	type asks map[string]string // response by address
	for _, c := range []struct {
		name           string
		change         func(*corev1.ServiceSpec)
		endpoints      []string
		config         rules.Config
		node, neighbor asks
	}{
		{
			"both here and elsewhere, local", external(local), []string{here, elsewhere}, rules.Config{},
			nil, asks{nodePort: here + " to " + clientIP, balanced: here + " to " + clientIP},
		}, {
			"none here, local", external(local), []string{elsewhere}, rules.Config{},
			asks{nodePort: elsewhere, "127.0.0.1:30080": elsewhere, balanced: elsewhere, clusterIP: elsewhere}, asks{nodePort: "silence", balanced: "silence", clusterIP: elsewhere},
		}, {
			"one here terminating, ready elsewhere, local", external(local), []string{here + "-", elsewhere}, rules.Config{},
			asks{nodePort: elsewhere, clusterIP: elsewhere}, asks{nodePort: here + " to " + clientIP},
		}, {
			"all go, cluster", external(cluster), []string{elsewhere + "-"}, rules.Config{},
			asks{clusterIP: elsewhere}, asks{nodePort: elsewhere, balanced: elsewhere},
		}, {
			"none at all", external(local), nil, rules.Config{},
			asks{clusterIP: "refused"}, asks{nodePort: "refused", balanced: "refused"},
		}, {
			"internal local, one here", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &internalLocal }, []string{here + "-", elsewhere}, rules.Config{},
			asks{clusterIP: here}, asks{clusterIP: here, nodePort: elsewhere},
		}, {
			"internal local, none here", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &internalLocal }, []string{elsewhere}, rules.Config{},
			asks{clusterIP: "silence"}, asks{nodePort: elsewhere},
		}, {
			"source range of the neighbour", func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{" 192.0.2.2/32"} }, []string{here}, rules.Config{},
			asks{balanced: "silence"}, asks{balanced: here, nodePort: here},
		}, {
			"source range of others", func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"198.18.0.0/15"} }, []string{here}, rules.Config{},
			nil, asks{balanced: "silence", nodePort: here},
		}, {
			"source range of all among others", func(s *corev1.ServiceSpec) {
				s.LoadBalancerSourceRanges = []string{"198.18.0.0/15", "0.0.0.0/0"}
			}, []string{here}, rules.Config{},
			nil, asks{balanced: here},
		}, {
			"node ports on some addresses", external(cluster), []string{here}, rules.Config{NodePortRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
			asks{"127.0.0.1:30080": "refused"}, asks{nodePort: "refused", otherIP + ":30080": here},
		}, {
			"not on loopback", external(cluster), []string{here}, rules.Config{},
			asks{"127.0.0.2:30080": here}, asks{otherIP + ":30080": here},
		}, {
			"by link", external(local), []string{elsewhere}, rules.Config{Pods: rules.FromInterface("n+")},
			nil, asks{nodePort: elsewhere}, // because traffic from this link counts as pod traffic
		},
	} {
		if c.config.Pods == (rules.Source{}) {
			c.config.Pods = clusterPods
		}
		c.config.LocalhostNodePorts = true
		ports := portsOf(service(c.change), slice(corev1.ProtocolTCP, c.endpoints...), node{"n", ""}, false)
		b.write(b.build(c.config, ports))
		for address, want := range c.node {
			b.expect(c.name+", the node", address, want)
		}
		b.Run(func() {
			for address, want := range c.neighbor {
				b.expect(c.name+", the neighbour", address, want)
			}
		})
	}
}

// TestAffinity checks that a client keeps its endpoint, whichever address it uses.
func TestAffinity(t *testing.T) { eachMode(t, testAffinity) }

func testAffinity(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	svc := service(func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	ports := portsOf(svc, slice(corev1.ProtocolTCP, here, elsewhere), node{"n", ""}, false)
	b.write(b.build(rules.Config{Pods: clusterPods}, ports))
	b.Run(func() {
		first := "silence"
		for end := time.Now().Add(time.Minute); first == "silence" && time.Now().Before(end); {
			first, _, _ = strings.Cut(ask("10.96.0.7:80"), " ")
		}
		for range 20 {
			for _, address := range []string{"10.96.0.7:80", nodeIP + ":30080", balancer + ":80"} {
				b.expect("affinity", address, first)
			}
		}
	})
}

// TestLostEndpoint checks that a client with session affinity gets another endpoint when its own one is removed, and keeps
// that.
func TestLostEndpoint(t *testing.T) { eachMode(t, testLostEndpoint) }

func testLostEndpoint(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	svc := service(func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	write := func(endpoints ...string) {
		b.write(b.build(rules.Config{Pods: clusterPods}, portsOf(svc, slice(corev1.ProtocolTCP, endpoints...), node{"n", ""}, false)))
	}
	write(here, elsewhere)
	b.expect("both", "10.96.0.7:80", "")
	first, _, _ := strings.Cut(ask("10.96.0.7:80"), " ")
	other := here
	if first == here {
		other = elsewhere
	}
	write(other)
	b.expect("the first endpoint was removed", "10.96.0.7:80", other)
	write(here, elsewhere)
	for range 20 {
		b.expect("the first endpoint is back", "10.96.0.7:80", other)
	}
}

// TestEndpoints checks that each of many endpoints is chosen, and that none is chosen that was removed.
func TestEndpoints(t *testing.T) { eachMode(t, testEndpoints) }

func testEndpoints(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	const all = 30
	for n := all; n > 0; n -= 7 {
		p := &rules.Port{Namespace: "default", Service: "web", Protocol: "tcp", ClusterIP: netip.MustParseAddr("10.96.0.7"), Port: 80, HasAny: true}
		for i := range n {
			p.Endpoints = append(p.Endpoints, rules.Endpoint{Address: netip.AddrPortFrom(netip.MustParseAddr(here), uint16(9000+i))})
		}
		if n == all {
			for _, e := range p.Endpoints {
				listener, err := net.Listen("tcp", e.Address.String())
				b.must(err)
				t.Cleanup(func() { listener.Close() })
				go testnetns.Serve(listener, func(string) string { return e.Address.String() })
			}
		}
		b.write(b.build(rules.Config{Pods: clusterPods}, []*rules.Port{p}))
		chosen := map[string]int{}
		for range 40 * n {
			chosen[ask("10.96.0.7:80")]++
		}
		for _, e := range p.Endpoints {
			if chosen[e.Address.String()] == 0 { // with a probability of e^-40
				t.Errorf("endpoint %s of %d was never chosen", e.Address, n)
			}
		}
		if len(chosen) != n {
			t.Errorf("%d endpoints were chosen, want %d: %v", len(chosen), n, chosen)
		}
	}
}

// TestIPv6 sends packets over IPv6.
func TestIPv6(t *testing.T) { eachMode(t, testIPv6) }

func testIPv6(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	const one, two, nodePort, clusterIP = "fd01::5", "fd01::6", "[fd03::1]:30080", "[fd02::7]:80"
	b.must(os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	up(b, "lo", one+"/128", two+"/128")
	up(b, "n0", "fd03::1/64")
	link, err := netlink.LinkByName("n0")
	b.must(err)
	_, services, _ := net.ParseCIDR("fd02::/64")
	b.must(netlink.RouteAdd(&netlink.Route{Dst: services, LinkIndex: link.Attrs().Index}))
	for _, ip := range []string{one, two} {
		listener, err := net.Listen("tcp", "["+ip+"]:8080")
		b.must(err)
		t.Cleanup(func() { listener.Close() })
		go testnetns.Serve(listener, func(string) string { return ip })
	}
	port := rules.Port{
		Namespace: "default", Service: "web", Protocol: "tcp", ClusterIP: netip.MustParseAddr("fd02::7"), Port: 80, NodePort: 30080, HasAny: true,
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("fd02::8")},
	}
	for _, ip := range []string{one, two} {
		port.Endpoints = append(port.Endpoints, rules.Endpoint{Address: netip.AddrPortFrom(netip.MustParseAddr(ip), 8080)})
	}
	for _, affinity := range []int{0, 60} {
		for _, sources := range []string{"fd00::/13", "fd08::/13"} {
			p := port
			p.Affinity, p.SourceRanges = affinity, []netip.Prefix{netip.MustParsePrefix(sources)}
			b.must(b.writer.Sync(t.Context(), packetfilter.IPv6, b.build(rules.Config{IPv6: true}, []*rules.Port{&p})))
			chosen := map[string]bool{}
			for range 40 {
				for _, address := range []string{clusterIP, nodePort} {
					chosen[ask(address)] = true
				}
			}
			want := map[string]bool{one: true, two: true}
			if affinity > 0 {
				want = map[string]bool{}
				for ip := range chosen {
					want = map[string]bool{ip: true}
				}
			}
			if !maps.Equal(chosen, want) || chosen["silence"] || chosen["refused"] {
				t.Errorf("affinity %d: endpoints %v, want %v", affinity, chosen, want)
			}
			if got := ask("[fd02::8]:80"); (got == "silence") == (sources == "fd00::/13") {
				t.Errorf("source ranges %s: the load balancer answers %q", sources, got)
			}
		}
	}
}

// TestDatagrams checks that a UDP flow moves to the endpoint that serves now.
func TestDatagrams(t *testing.T) { eachMode(t, testDatagrams) }

func testDatagrams(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	svc := service(func(s *corev1.ServiceSpec) { s.Ports[0].Protocol = corev1.ProtocolUDP })
	write := func(endpoints ...string) {
		ports := portsOf(svc, slice(corev1.ProtocolUDP, endpoints...), node{"n", ""}, false)
		b.write(b.build(rules.Config{Pods: clusterPods}, ports))
		_, err := udpFrontendsOf(ports).flush(false)
		b.must(err)
	}
	flows := map[string]net.Conn{}
	b.Run(func() {
		for _, to := range []string{"10.96.0.7:80", nodeIP + ":30080", balancer + ":80"} {
			conn, err := net.Dial("udp", to)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { conn.Close() })
			flows[to] = conn
		}
	})
	expect := func(what, want string) {
		t.Helper()
		for to, conn := range flows {
			got := ""
			for end := time.Now().Add(time.Minute); got == "" && time.Now().Before(end); {
				_, _ = conn.Write([]byte(what))
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				buffer := make([]byte, 64)
				n, _ := conn.Read(buffer)
				// Ignore a late response to an earlier request.
				if who, ok := strings.CutSuffix(string(buffer[:n]), " to "+what); ok {
					got = who
				}
			}
			if got != want {
				t.Errorf("%s: %s answers %q, want %q", what, to, got, want)
			}
		}
	}
	write(here)
	expect("at first", here)
	write(here+"-", elsewhere)
	expect("it goes and still serves", here)
	write(elsewhere)
	expect("it is gone", elsewhere)
	write()
	write(here)
	expect("none was there meanwhile", here)
}

// TestRemovedByOthers checks that removals by other processes are detected by kernel notifications
// and repaired, and that the proxy's own removals are ignored.
func TestRemovedByOthers(t *testing.T) {
	b := newBench(t, packetfilter.IPTables)
	ctx := context.Background()
	ports := portsOf(service(func(*corev1.ServiceSpec) {}), slice(corev1.ProtocolTCP, here), node{"n", ""}, false)
	set := rules.Build(rules.Config{Pods: clusterPods}, ports)
	g := b.writer
	b.must(g.Listen())
	watching, stop := context.WithCancel(ctx)
	suspect := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(watching, suspect)
	}()
	defer func() { stop(); <-ended }()
	<-g.Ready()
	b.write(set)
	for i, command := range []string{
		"iptables -t nat -F", "iptables -t nat -F KUBE-SERVICES", "iptables -t filter -F && iptables -t filter -X",
		"iptables -t nat -D KUBE-SERVICES 1", "iptables -D FORWARD -m comment --comment 'kubernetes forwarding rules' -j KUBE-FORWARD",
		"iptables -t mangle -F && iptables -t mangle -X",
		"printf '*nat\\nCOMMIT\\n*mangle\\nCOMMIT\\n*filter\\nCOMMIT\\n' | iptables-restore",
	} {
		b.write(rules.Build(rules.Config{}, nil))
		b.write(set)
		select {
		case <-suspect:
			// Later events may come from earlier removals by other processes.
			if i == 0 {
				t.Error("own changes were taken for those of others")
			}
		default:
		}
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		select {
		case <-suspect:
		case <-time.After(time.Minute):
			t.Fatalf("%s was not noticed", command)
		}
		if !b.writer.Lost(ctx) {
			t.Errorf("%s: the rules seem to be there", command)
		}
		b.write(set)
		if b.writer.Lost(ctx) {
			t.Errorf("after %s the rules are not what was written", command)
		}
		b.expect("after "+command, "10.96.0.7:80", here)
		// Drain a duplicate notification.
		select {
		case <-suspect:
		default:
		}
	}
	b.must(packetfilter.Remove(ctx, packetfilter.IPv4, rules.AllChains()))
	if left := save(t); strings.Contains(left, "KUBE") {
		t.Errorf("cleaning up left\n%s", left)
	}
}
