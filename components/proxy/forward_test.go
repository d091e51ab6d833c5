package proxy

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testnetns"
)

// withPod adds a pod behind the node that answers on port 8080. Packets to it are forwarded, while
// all other packets are delivered locally. It returns the network namespace of the pod.
func (b *bench) withPod(ip string) *testnetns.Namespace {
	pod := testnetns.New(b.t)
	b.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "p0"}, PeerName: "p1", PeerNamespace: netlink.NsPid(pod.Thread())}))
	up(b, "p0", "10.244.0.1/24")
	var listener net.Listener
	var err error
	pod.Run(func() {
		up(b, "p1", ip+"/24")
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		if err = netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP("10.244.0.1")}); err == nil {
			listener, err = net.Listen("tcp", ip+":8080")
		}
	})
	b.must(err)
	b.t.Cleanup(func() { listener.Close() })
	go testnetns.Serve(listener, func(caller string) string { return ip + " to " + caller })
	return pod
}

// TestHairpin checks that a pod can connect to itself through its Service.
func TestHairpin(t *testing.T) { eachMode(t, testHairpin) }

func testHairpin(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	const address = "10.244.0.77"
	pod := b.withPod(address)
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		svc := service(func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = policy })
		b.write(b.build(rules.Config{Pods: clusterPods}, portsOf(svc, slice(corev1.ProtocolTCP, address), node{"n", ""}, false)))
		pod.Run(func() {
			for _, to := range []string{"10.96.0.7:80", balancer + ":80", nodeIP + ":30080"} {
				b.expect("the pod itself", to, address+" to 10.244.0.1")
			}
		})
		b.Run(func() { b.expect("the client", "10.96.0.7:80", address+" to 10.244.0.1") })
	}
}

// TestSourceRangesOfPods checks that loadBalancerSourceRanges also protect pods, with and without
// masquerading, and with existing jumps in any order.
func TestSourceRangesOfPods(t *testing.T) { eachMode(t, testSourceRangesOfPods) }

func testSourceRangesOfPods(t *testing.T, mode packetfilter.Mode) {
	b := newBench(t, mode)
	const pod = "10.244.0.77"
	b.withPod(pod)
	ctx := context.Background()
	var last packetfilter.Ruleset
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		for ranges, want := range map[string]string{"198.18.0.0/15": "silence", clientIP + "/32": pod} {
			endpoints := slice(corev1.ProtocolTCP, pod)
			endpoints[0].Endpoints[0].NodeName = new("n")
			svc := service(func(s *corev1.ServiceSpec) {
				s.ExternalTrafficPolicy, s.LoadBalancerSourceRanges = policy, []string{ranges}
			})
			set := b.build(rules.Config{Pods: clusterPods}, portsOf(svc, endpoints, node{"n", ""}, false))
			last = set
			b.write(set)
			b.Run(func() {
				b.expect(string(policy)+" from "+ranges, balancer+":80", want)
				b.expect(string(policy)+" from anywhere", nodeIP+":30080", pod)
			})
		}
	}
	if mode == packetfilter.NFTables {
		return // the order of jumps is tested in package packetfilter
	}
	if saved := save(t); !strings.Contains(saved, ":KUBE-IPTABLES-HINT -") {
		t.Error("the hint chain is missing")
	}
	const forward = "FORWARD -m comment --comment 'kubernetes forwarding rules' -j KUBE-FORWARD"
	for _, command := range []string{"iptables -D " + forward, "iptables -D " + forward + " && iptables -I " + forward} {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		if !b.writer.Lost(ctx) {
			t.Errorf("after %s all seems to be in place", command)
		}
		b.write(last)
		var order []string
		for line := range strings.Lines(save(t)) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "-A" && words[1] == "FORWARD" {
				order = append(order, words[len(words)-1])
			}
		}
		if got := strings.Join(order, " "); got != "KUBE-PROXY-FIREWALL KUBE-FORWARD KUBE-SERVICES KUBE-EXTERNAL-SERVICES" {
			t.Errorf("after %s the order is %s", command, got)
		}
	}
}
