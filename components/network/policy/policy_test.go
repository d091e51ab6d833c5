package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/internal/host/packetfilter"
)

// packet is the first packet of a connection.
type packet struct {
	src, dst netip.Addr
	protocol corev1.Protocol
	port     uint16
}

// passes evaluates the rules for a packet as the kernel does.
func passes(t *testing.T, set packetfilter.Chains, p packet) bool {
	t.Helper()
	verdict := run(t, set, chainPolicy, p, 0)
	return verdict != packetfilter.Drop
}

// run evaluates a chain and returns accept, drop, or back if no rule decides.
func run(t *testing.T, set packetfilter.Chains, name string, p packet, depth int) string {
	t.Helper()
	rules, ok := set[chain(name)]
	if !ok || depth > 10 {
		t.Fatalf("chain %s at depth %d: there %v", name, depth, ok)
	}
	for _, r := range rules {
		first, last := r.Ports.First, max(r.Ports.First, r.Ports.Last)
		if r.Conn.States != 0 || r.Src.Range.IsValid() && !r.Src.Range.Contains(p.src) || r.Dst.Range.IsValid() && !r.Dst.Range.Contains(p.dst) ||
			r.Protocol != "" && r.Protocol != protocolName(p.protocol) || first != 0 && (p.port < first || p.port > last) {
			continue
		}
		switch r.Target {
		case packetfilter.Accept, packetfilter.Drop, packetfilter.Return:
			return r.Target
		}
		if v := run(t, set, r.Target, p, depth+1); v != packetfilter.Return {
			return v
		}
	}
	return packetfilter.Return
}

// naive decides as the documentation specifies, without rules.
func naive(s *State, p packet) bool {
	if p.src == p.dst {
		return true
	}
	of := func(ip netip.Addr) *Pod {
		for _, pod := range s.Pods {
			if slices.Contains(pod.IPs, ip) {
				return pod
			}
		}
		return nil
	}
	src, dst := of(p.src), of(p.dst)
	ok := true
	if src != nil && src.Local {
		ok = ok && naiveSide(s, src, p.dst, dst, p, false, dst)
	}
	if dst != nil && dst.Local {
		ok = ok && naiveSide(s, dst, p.src, src, p, true, dst)
	}
	return ok
}

func naiveSide(s *State, pod *Pod, otherIP netip.Addr, other *Pod, p packet, ingress bool, to *Pod) bool {
	isolated := false
	for _, policy := range s.Policies {
		in, out := directions(&policy.Spec)
		if ingress && !in || !ingress && !out || policy.Namespace != pod.Namespace || !selector(&policy.Spec.PodSelector).Matches(pod.Labels) {
			continue
		}
		isolated = true
		type clause struct {
			peers []networkingv1.NetworkPolicyPeer
			ports []networkingv1.NetworkPolicyPort
		}
		var clauses []clause
		if ingress {
			for _, r := range policy.Spec.Ingress {
				clauses = append(clauses, clause{r.From, r.Ports})
			}
		} else {
			for _, r := range policy.Spec.Egress {
				clauses = append(clauses, clause{r.To, r.Ports})
			}
		}
		for _, c := range clauses {
			if naivePeer(s, policy.Namespace, c.peers, otherIP, other) && naivePort(c.ports, p, to) {
				return true
			}
		}
	}
	return !isolated
}

func naivePeer(s *State, ns string, peers []networkingv1.NetworkPolicyPeer, ip netip.Addr, pod *Pod) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if b := peer.IPBlock; b != nil {
			in := netip.MustParsePrefix(b.CIDR).Contains(ip)
			for _, e := range b.Except {
				in = in && !netip.MustParsePrefix(e).Contains(ip)
			}
			if in {
				return true
			}
			continue
		}
		if pod == nil {
			continue
		}
		if peer.NamespaceSelector == nil && pod.Namespace != ns ||
			peer.NamespaceSelector != nil && !selector(peer.NamespaceSelector).Matches(s.Namespaces[pod.Namespace]) {
			continue
		}
		if peer.PodSelector == nil || selector(peer.PodSelector).Matches(pod.Labels) {
			return true
		}
	}
	return false
}

func naivePort(ports []networkingv1.NetworkPolicyPort, p packet, to *Pod) bool {
	if len(ports) == 0 {
		return true
	}
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		if protocol != p.protocol {
			continue
		}
		switch {
		case port.Port == nil:
			return true
		case port.Port.Type == intstr.String:
			if to != nil && to.named(port.Port.StrVal, protocol) == p.port {
				return true
			}
		case port.EndPort != nil:
			if int32(p.port) >= port.Port.IntVal && int32(p.port) <= *port.EndPort {
				return true
			}
		case int32(p.port) == port.Port.IntVal:
			return true
		}
	}
	return false
}

// TestRandom compares the rules with the naive model on random input.
func TestRandom(t *testing.T) {
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomState(r)
		for _, is6 := range []bool{false, true} {
			set := build(s, "br", is6)
			for range 60 {
				p := randomPacket(r, s, is6)
				if got, want := passes(t, set, p), naive(s, p); got != want {
					t.Fatalf("seed %d: %+v: passes %v, want %v\n%s", seed, p, got, want, show(set))
				}
			}
		}
	}
}

func show(set packetfilter.Chains) string { return packetfilter.Change{Replace: set}.String() }

var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomLabels(r *rand.Rand) labels.Set {
	l := labels.Set{}
	for _, key := range []string{"a", "b"} {
		if r.IntN(2) == 0 {
			l[key] = pick(r, "x", "y")
		}
	}
	return l
}

func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	switch r.IntN(4) {
	case 0:
	case 1:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "b", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}
	default:
		s.MatchLabels[pick(r, "a", "b")] = pick(r, "x", "y")
	}
	return s
}

func randomState(r *rand.Rand) *State {
	s := &State{Namespaces: map[string]labels.Set{"one": randomLabels(r), "two": randomLabels(r)}}
	for i := range 2 + r.IntN(6) {
		p := &Pod{
			Namespace: pick(r, "one", "two"), Name: fmt.Sprint("p", i), Labels: randomLabels(r), Local: r.IntN(2) == 0,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", r.IntN(2), i+1))},
		}
		for _, name := range []string{"http", "dns"} {
			if r.IntN(2) == 0 {
				p.Ports = append(p.Ports, Port{name, pick(r, protocols...), int32(1 + r.IntN(6))})
			}
		}
		s.Pods = append(s.Pods, p)
	}
	for i := range r.IntN(4) {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(r, "one", "two"), Name: fmt.Sprint("n", i)}}
		p.Spec.PodSelector = *randomSelector(r)
		p.Spec.PolicyTypes = pick(r, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
		for range r.IntN(3) {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: randomPeers(r), Ports: randomPorts(r)})
		}
		for range r.IntN(3) {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: randomPeers(r), Ports: randomPorts(r)})
		}
		s.Policies = append(s.Policies, p)
	}
	return s
}

func randomPeers(r *rand.Rand) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range r.IntN(3) {
		switch r.IntN(5) {
		case 0:
			out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: randomSelector(r)})
		case 1:
			out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: randomSelector(r)})
		case 2:
			out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: randomSelector(r), PodSelector: randomSelector(r)})
		case 3:
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
				CIDR: pick(r, "0.0.0.0/0", "10.0.0.0/16", "10.0.1.0/24"), Except: pick(r, nil, []string{"10.0.1.0/24"}, []string{"10.0.1.4/30", "10.0.0.2/32"}),
			}})
		default:
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
				CIDR: pick(r, "::/0", "fd00::/64"), Except: pick(r, nil, []string{"fd00::1:0/112"}),
			}})
		}
	}
	return out
}

func randomPorts(r *rand.Rand) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range r.IntN(3) {
		p := networkingv1.NetworkPolicyPort{}
		if r.IntN(3) > 0 {
			p.Protocol = new(pick(r, protocols...))
		}
		switch r.IntN(4) {
		case 0:
		case 1:
			p.Port = new(intstr.FromString(pick(r, "http", "dns")))
		case 2:
			p.Port = new(intstr.FromInt32(int32(1 + r.IntN(3))))
			p.EndPort = new(int32(3 + r.IntN(3)))
		default:
			p.Port = new(intstr.FromInt32(int32(1 + r.IntN(6))))
		}
		out = append(out, p)
	}
	return out
}

func randomPacket(r *rand.Rand, s *State, is6 bool) packet {
	ip := func() netip.Addr {
		if r.IntN(4) == 0 {
			if is6 {
				return pick(r, netip.MustParseAddr("fd00::9"), netip.MustParseAddr("fd01::1:9"))
			}
			return pick(r, netip.MustParseAddr("10.0.1.99"), netip.MustParseAddr("8.8.8.8"))
		}
		return pick(r, s.Pods...).ip(is6)
	}
	return packet{src: ip(), dst: ip(), protocol: pick(r, protocols...), port: uint16(1 + r.IntN(6))}
}

// TestLeftover checks that chains of an earlier process are removed, and that HK-POLICY, which another
// component creates, is emptied but neither created nor removed.
func TestLeftover(t *testing.T) {
	for saved, want := range map[string]string{
		"":                                      "",
		"*mangle\n:HK-POLICY - [0:0]\nCOMMIT\n": "",
		"*nat\n:HK-NP-X - [0:0]\nCOMMIT\n*mangle\n:INPUT ACCEPT [0:0]\n:HK-POLICY - [0:0]\n:HK-NP-IN - [0:0]\n-A HK-POLICY -j HK-NP-IN\nCOMMIT\n": "*mangle\n:HK-POLICY - [0:0]\n:HK-NP-IN - [0:0]\n-X HK-NP-IN\nCOMMIT\n",
	} {
		kernel := &fakeKernel{state: packetfilter.ParseState(saved)}
		if err := newWriter(packetfilter.IPTables, nil, kernel).Sync(t.Context(), packetfilter.IPv4, packetfilter.Ruleset{Chains: build(&State{}, "br", false)}); err != nil {
			t.Fatal(err)
		}
		if kernel.written != want {
			t.Errorf("%q: wrote %q, want %q", saved, kernel.written, want)
		}
	}
}

// fakeKernel is a backend with a fixed state.
type fakeKernel struct {
	state   *packetfilter.State
	written string // the last change, as iptables-restore reads it
}

func (k *fakeKernel) Read(context.Context, packetfilter.Family) (*packetfilter.State, error) {
	return k.state, nil
}

func (k *fakeKernel) Apply(_ context.Context, _ packetfilter.Family, change packetfilter.Change) error {
	k.written = change.String()
	return nil
}

func TestPodEqual(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "p", Labels: map[string]string{"a": "x"}}}
		p.Spec.NodeName = "here"
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
		if change != nil {
			change(p)
		}
		return podOf(p, "here")
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"nothing":      {nil, true},
		"condition":    {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, true},
		"label":        {func(p *corev1.Pod) { p.Labels["a"] = "y" }, false},
		"address":      {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }, false},
		"no address":   {func(p *corev1.Pod) { p.Status.PodIPs = nil }, false},
		"port":         {func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 81 }, false},
		"end":          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"host network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
	} {
		if got := pod(nil).equal(pod(c.change)); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}
