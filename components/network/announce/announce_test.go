package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/pod/netannotation"
	"hyperkube/internal/testing/testnetns"
	"hyperkube/internal/testing/testwait"
)

// lan is a bridge with a client and two nodes, each in its own network namespace.
type lan struct {
	*testing.T
	client *testnetns.Namespace
	nodes  map[string]*node
}

// node is a node of a lan with its Announcer and the API server that this sees.
type node struct {
	name string
	ns   *testnetns.Namespace
	mac  net.HardwareAddr
	kube *fake.Clientset
	// stop cancels the context of Run.
	stop   func()
	exited chan struct{}
}

const (
	vip4 = "192.0.2.100"
	vip6 = "2001:db8::100"
)

func newLAN(t *testing.T) *lan {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	l := &lan{T: t, client: testnetns.New(t), nodes: map[string]*node{}}
	l.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan", Flags: net.FlagUp}}))
	bridge, err := netlink.LinkByName("lan")
	l.must(err)
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	l.connect("client", l.client, 2)
	for i, name := range []string{"n1", "n2"} {
		n := &node{name: name, ns: testnetns.New(t), exited: make(chan struct{})}
		n.mac = l.connect(name, n.ns, 11+i)
		l.nodes[name] = n
	}
	for _, n := range l.nodes {
		l.start(n)
	}
	return l
}

func (l *lan) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// connect connects a namespace to the bridge, with addresses that end in number. It returns the hardware address of
// the link in the namespace.
func (l *lan) connect(name string, ns *testnetns.Namespace, number int) (mac net.HardwareAddr) {
	l.Helper()
	l.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsPid(ns.Thread())}))
	port, err := netlink.LinkByName(name)
	l.must(err)
	l.Cleanup(func() { _ = netlink.LinkDel(port) })
	bridge, err := netlink.LinkByName("lan")
	l.must(err)
	l.must(netlink.LinkSetMaster(port, bridge))
	l.must(netlink.LinkSetUp(port))
	ns.Run(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName("eth0"); err != nil {
			return
		}
		mac = link.Attrs().HardwareAddr
		for _, text := range []string{fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number)} {
			addr, _ := netlink.ParseAddr(text)
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			err = errors.Join(err, netlink.AddrAdd(link, addr))
		}
		err = errors.Join(err, netlink.LinkSetUp(link))
	})
	l.must(err)
	return mac
}

// start starts the Announcer of n with an API server that contains the two nodes and a Service without addresses.
func (l *lan) start(n *node) {
	l.Helper()
	n.kube = fake.NewClientset(readyNode("n1"), readyNode("n2"), balanced(""))
	factory := informers.NewSharedInformerFactory(n.kube, 0)
	ready := make(chan struct{})
	close(ready)
	a, err := New(Config{
		NodeName: n.name, Services: factory.Core().V1().Services().Informer(), Nodes: factory.Core().V1().Nodes().Informer(), Kube: n.kube, Ready: ready,
	})
	l.must(err)
	informing, stopInformers := context.WithCancel(context.Background())
	factory.StartWithContext(informing)
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go n.ns.Run(func() {
		defer close(n.exited)
		_ = a.Run(ctx)
	})
	l.Cleanup(func() {
		cancel()
		<-n.exited
		stopInformers()
		factory.Shutdown()
	})
}

func readyNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2." + map[string]string{"n1": "11", "n2": "12"}[name]}},
	}}
}

// balanced returns a Service whose addresses a node announces.
func balanced(node string, addresses ...string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{netannotation.LoadBalancerNode: node}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	for _, a := range addresses {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return svc
}

// assign replaces the Service in the API servers of nodes.
func (l *lan) assign(svc *corev1.Service, nodes ...string) {
	l.Helper()
	for _, name := range nodes {
		_, err := l.nodes[name].kube.CoreV1().Services("default").Update(l.Context(), svc, metav1.UpdateOptions{})
		l.must(err)
	}
}

// neighbor returns the client's entry for an address; nil if there is none.
func (l *lan) neighbor(address string) (found *netlink.Neigh) {
	l.Helper()
	var err error
	l.client.Run(func() {
		var all []netlink.Neigh
		if all, err = netlink.NeighList(0, netlink.FAMILY_ALL); err != nil {
			return
		}
		if i := slices.IndexFunc(all, func(n netlink.Neigh) bool { return n.IP.Equal(net.ParseIP(address)) && n.State != unix.NUD_NOARP }); i >= 0 {
			found = &all[i]
		}
	})
	l.must(err)
	return found
}

// send sends a packet from the client to an address, so that its kernel asks for the address.
func (l *lan) send(address string) {
	l.Helper()
	var err error
	l.client.Run(func() {
		var conn net.Conn
		if conn, err = net.Dial("udp", net.JoinHostPort(address, "9")); err == nil {
			_, err = conn.Write([]byte("x"))
			conn.Close()
		}
	})
	if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) {
		l.Fatal(err)
	}
}

// resolves waits until the client has the hardware address of a node for an address. With ask, the client asks for it;
// otherwise it only waits.
func (l *lan) resolves(address, node string, ask bool) {
	l.Helper()
	mac := l.nodes[node].mac
	testwait.Succeed(l, "the client knows "+node, func() error {
		if ask {
			l.send(address)
		}
		if n := l.neighbor(address); n == nil || !bytes.Equal(n.HardwareAddr, mac) {
			return fmt.Errorf("the entry for %s is %v, %s has %s", address, n, node, mac)
		}
		return nil
	})
}

// forget removes the client's entry for an address.
func (l *lan) forget(address string) {
	l.Helper()
	entry := l.neighbor(address)
	if entry == nil {
		return
	}
	var err error
	l.client.Run(func() { err = netlink.NeighDel(entry) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		l.Fatal(err)
	}
}

// unanswered waits until the client fails to resolve an address.
func (l *lan) unanswered(address string) {
	l.Helper()
	l.forget(address)
	l.send(address)
	testwait.Succeed(l, address+" is not answered", func() error {
		n := l.neighbor(address)
		switch {
		case n == nil:
			l.send(address)
		case n.HardwareAddr != nil && n.State != unix.NUD_FAILED: // a node has answered
			l.forget(address)
		case n.State == unix.NUD_FAILED:
			return nil
		}
		return fmt.Errorf("the entry is %v", n)
	})
}

// TestAnnounce checks that the assigned node answers, that the other node takes over without a question of the client,
// and that no node answers for an address that is not assigned.
func TestAnnounce(t *testing.T) {
	l := newLAN(t)
	l.assign(balanced("n1", vip4, vip6), "n1", "n2")
	for _, address := range []string{vip4, vip6} {
		l.resolves(address, "n1", true)
	}
	l.assign(balanced("n2", vip4, vip6), "n1", "n2")
	for _, address := range []string{vip4, vip6} {
		l.resolves(address, "n2", false)
		l.forget(address)
		l.resolves(address, "n2", true)
	}
	l.assign(balanced("n2", vip6), "n1", "n2")
	l.unanswered(vip4)
	l.resolves(vip6, "n2", true)
	l.assign(balanced("", vip6), "n1", "n2")
	l.unanswered(vip6)
}

// TestProbe checks that the node answers when the client verifies an entry, for which it sends a unicast packet.
func TestProbe(t *testing.T) {
	l := newLAN(t)
	l.assign(balanced("n1", vip4, vip6), "n1", "n2")
	for _, address := range []string{vip4, vip6} {
		l.resolves(address, "n1", true)
		entry := l.neighbor(address)
		entry.State = unix.NUD_PROBE
		var err error
		l.client.Run(func() { err = netlink.NeighSet(entry) })
		l.must(err)
		testwait.Until(t, address+" is reachable", func() bool {
			n := l.neighbor(address)
			return n != nil && n.State == unix.NUD_REACHABLE
		})
	}
}

// TestLinkAppears checks that addresses are announced on a link that gets a carrier later.
func TestLinkAppears(t *testing.T) {
	l := newLAN(t)
	port, err := netlink.LinkByName("n1")
	l.must(err)
	l.must(netlink.LinkSetDown(port))
	l.assign(balanced("n2", vip4), "n1", "n2")
	l.resolves(vip4, "n2", true)
	l.assign(balanced("n1", vip4), "n1", "n2")
	l.must(netlink.LinkSetUp(port))
	l.resolves(vip4, "n1", false)
}

// TestPartition checks that a node that does not receive the assignment to another node stops to answer when the other
// node announces the address.
func TestPartition(t *testing.T) {
	l := newLAN(t)
	l.assign(balanced("n1", vip4, vip6), "n1", "n2")
	l.resolves(vip4, "n1", true)
	l.resolves(vip6, "n1", true)
	// The informer of n1 does not receive the change, as if the node could not reach the API server.
	svc, err := l.nodes["n1"].kube.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	l.must(err)
	l.nodes["n1"].kube.PrependReactor("get", "services", failing)
	l.assign(balanced("n2", vip4, vip6), "n2")
	for _, address := range []string{vip4, vip6} {
		l.resolves(address, "n2", false)
	}
	l.assign(balanced("", vip4, vip6), "n2")
	for _, address := range []string{vip4, vip6} {
		l.unanswered(address)
	}
	// When the API server answers again, the node answers if the addresses are still assigned to it.
	l.nodes["n1"].kube.ReactionChain = l.nodes["n1"].kube.ReactionChain[1:]
	l.assign(svc, "n1")
	l.resolves(vip4, "n1", true)
	l.resolves(vip6, "n1", true)
}

// TestDefense checks that a node announces an assigned address again when another machine claims it.
func TestDefense(t *testing.T) {
	l := newLAN(t)
	l.assign(balanced("n1", vip4), "n1", "n2")
	l.resolves(vip4, "n1", true)
	l.assign(balanced("n2", vip4), "n2") // only n2 takes itself for the assigned node, and announces
	testwait.Until(t, "the node asks the API server", func() bool {
		return slices.ContainsFunc(l.nodes["n1"].kube.Actions(), isGet)
	})
	l.resolves(vip4, "n1", false)
}

// TestHandover checks that a stopping node requests a successor and answers until there is one, and that a node removes
// the request when it starts.
func TestHandover(t *testing.T) {
	l := newLAN(t)
	l.assign(balanced("n1", vip4), "n1", "n2")
	l.resolves(vip4, "n1", true)
	n1 := l.nodes["n1"]
	stopping := func() bool {
		n, err := n1.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		l.must(err)
		_, ok := n.Annotations[netannotation.LoadBalancerStopping]
		return ok
	}
	n1.stop()
	testwait.Until(t, "the node requests a successor", stopping)
	select {
	case <-n1.exited:
		t.Log("the node has stopped before it was replaced")
	default:
	}
	l.assign(balanced("n2", vip4), "n2", "n1")
	<-n1.exited
	l.resolves(vip4, "n2", false)
	l.unassignAndStart(n1, stopping)
}

// unassignAndStart starts an Announcer of n again and waits until stopping returns false.
func (l *lan) unassignAndStart(n *node, stopping func() bool) {
	l.Helper()
	factory := informers.NewSharedInformerFactory(n.kube, 0)
	ready := make(chan struct{})
	close(ready)
	a, err := New(Config{NodeName: n.name, Services: factory.Core().V1().Services().Informer(), Nodes: factory.Core().V1().Nodes().Informer(), Kube: n.kube, Ready: ready})
	l.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = a.Run(ctx)
	}()
	testwait.Until(l, "the request is removed", func() bool { return !stopping() })
	cancel()
	<-exited
	factory.Shutdown()
}
