package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const poolManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: IMAGE
        args: [hello]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {type: LoadBalancer, selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: local, annotations: {metallb.io/loadBalancerIPs: 192.168.94.105}}
spec: {type: LoadBalancer, selector: {app: web}, externalTrafficPolicy: Local, ports: [{port: 80, targetPort: 8080}]}
`

// poolLab is a cluster with two nodes and a pool, and a client in its own network namespace on the bridge between the
// nodes.
type poolLab struct {
	*machine
	first, second string // names of the nodes
	macs          map[string]string
}

// inClient is the command prefix that enters the network namespace of the client, whose addresses end in 90.
const inClient = "ip netns exec client "

// TestLoadBalancerPool checks that Services have their own addresses of a pool, which a client in the network of the
// nodes reaches, and that the addresses move when their node stops, is killed, or has no endpoints.
func TestLoadBalancerPool(t *testing.T) {
	m := newNetworked(t, "198.18.15.1/24", "fd00:18:15::1/64")
	if out, err := m.command(m.binary, "up", "--root", m.root, "--nodes=2", "--load-balancer-pool=198.18.15.0/28").CombinedOutput(); err == nil || !strings.Contains(string(out), "198.18.15.0/28 contains 198.18.15.1, an address of this machine") {
		t.Errorf("a pool with an address of the machine: %v\n%s", err, out)
	}
	m.hyperkube("reset", "--root", m.root)
	m.hyperkube("up", "--root", m.root, "--nodes=2", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56", "--service-cidr=10.96.0.0/16,fd00:10:96::/112",
		"--load-balancer-pool=192.168.94.100-192.168.94.110,fd00:192:168:94::100-fd00:192:168:94::110")
	names := strings.Fields(m.kubectl("get", "nodes", "--sort-by=.metadata.name", "-o", "jsonpath={.items[*].metadata.name}"))
	l := &poolLab{machine: m, first: names[0], second: names[1]}
	// The rules of the first node would also apply to packets from the client to the second one, because its
	// namespace contains the bridge.
	m.sh("for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do [ ! -e $f ] || echo 0 > $f; done")
	m.sh("ip netns add client && ip link add client0 type veth peer name eth0 netns client && ip link set client0 master hk-nodes up")
	t.Cleanup(func() { _ = m.command("ip", "netns", "delete", "client").Run() })
	m.sh(inClient + "sh -c 'ip addr add 192.168.94.90/24 dev eth0 && ip addr add fd00:192:168:94::90/64 dev eth0 nodad && ip link set eth0 up'")
	mac := func(in, link string) string {
		return strings.Fields(m.sh(in + "ip -o link show " + link + " | sed 's/.*ether//'"))[0]
	}
	l.macs = map[string]string{
		l.first: mac("", "hk-nodes"), l.second: mac("nsenter --net="+filepath.Join(m.root, "run/hyperkube/nodes/1/netns")+" ", "eth0"),
	}
	m.apply(poolManifest)
	m.kubectl("rollout", "status", "ds/web", "--timeout=180s")
	for _, name := range []string{"both", "local"} {
		m.kubectl("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/"+name, "--timeout=60s")
	}
	t.Run("addresses", func(t *testing.T) { l.in(t).addresses() })
	t.Run("exhausted", func(t *testing.T) { l.in(t).exhausted() })
	t.Run("stop", func(t *testing.T) { l.in(t).stopped() })
	t.Run("kill", func(t *testing.T) { l.in(t).killed() })
	t.Run("endpoints", func(t *testing.T) { l.in(t).endpoints() })
	t.Run("removed", func(t *testing.T) { l.in(t).removed() })
}

// in returns a copy of l for a subtest.
func (l *poolLab) in(t *testing.T) *poolLab {
	sub, m, a := *l, *l.machine, *l.alone
	a.t, m.alone, sub.machine = t, &a, &m
	return &sub
}

// ips returns the addresses of a Service.
func (l *poolLab) ips(service string) []string {
	l.t.Helper()
	return strings.Fields(l.kubectl("get", "service", service, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
}

// assigned returns the node that announces a Service.
func (l *poolLab) assigned(service string) string {
	l.t.Helper()
	var svc corev1.Service
	l.read(&svc, "service", service)
	return svc.Annotations["network.hyperkube.io/load-balancer-node"]
}

// ask requests a URL at an address from the client, and returns the response.
func (l *poolLab) ask(address string) (string, error) {
	words := append(strings.Fields(inClient), l.binary, "hello", "get", "--timeout=1s", "http://"+bracketed(address))
	out, err := l.command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w %s", address, err, out)
	}
	return string(out), nil
}

// answers waits until the client gets a response from an address that contains text.
func (l *poolLab) answers(address, text string) {
	l.t.Helper()
	l.eventually(10*time.Second, func() error {
		out, err := l.ask(address)
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("%s answers without %q: %s", address, text, out)
		}
		return err
	})
}

// hasMAC returns an error unless the client sends packets to an address to the node.
func (l *poolLab) hasMAC(address, node string) error {
	if out := l.sh(inClient + "ip neigh show " + address); !strings.Contains(out, l.macs[node]) {
		return fmt.Errorf("the neighbor entry of the client is %q, %s has %s", out, node, l.macs[node])
	}
	return nil
}

// moves waits until the client sends packets to all addresses of a Service to the node, and logs the time since began.
// With ask, the client sends requests meanwhile. Otherwise, it learns only from announcements of the node.
func (l *poolLab) moves(service, node string, within time.Duration, began time.Time, ask bool) {
	l.t.Helper()
	for _, address := range l.ips(service) {
		l.eventually(within, func() error {
			err := l.hasMAC(address, node)
			if err != nil && ask {
				_, _ = l.ask(address) // the answer does not matter
			}
			return err
		})
		l.t.Logf("%s of %s moved to %s after %s", address, service, node, time.Since(began).Round(time.Millisecond))
	}
	l.eventually(5*time.Second, func() error {
		if got := l.assigned(service); got != node {
			return fmt.Errorf("%s is assigned to %s", service, got)
		}
		return nil
	})
}

// place makes the second node announce a Service, by excluding the first one for a moment.
func (l *poolLab) place(service string) {
	l.t.Helper()
	l.kubectl("label", "node", l.first, corev1.LabelNodeExcludeBalancers+"=")
	l.eventually(10*time.Second, func() error {
		if got := l.assigned(service); got != l.second {
			return fmt.Errorf("%s is assigned to %q", service, got)
		}
		return nil
	})
	l.kubectl("label", "node", l.first, corev1.LabelNodeExcludeBalancers+"-")
	for _, address := range l.ips(service) {
		l.answers(address, "Hello from pod web-")
		if err := l.hasMAC(address, l.second); err != nil {
			l.t.Error(err)
		}
	}
}

func (l *poolLab) addresses() {
	both := l.ips("both")
	if len(both) != 2 || both[0] != "192.168.94.100" || both[1] != "fd00:192:168:94::100" {
		l.t.Errorf("the addresses are %v", both)
	}
	for _, address := range both {
		l.answers(address, "Hello from pod web-")
		if err := l.hasMAC(address, l.assigned("both")); err != nil {
			l.t.Error(err)
		}
		l.reaches("", "http://"+bracketed(address)) // from the first node
	}
	// Local keeps the address of the client, and the endpoint is on the node that announces the address.
	if got := l.ips("local"); len(got) != 1 || got[0] != "192.168.94.105" {
		l.t.Errorf("the addresses are %v", got)
	}
	l.answers("192.168.94.105", "from 192.168.94.90:")
	l.answers("192.168.94.105", "node "+l.assigned("local")+"\n")
	if out := l.kubectl("describe", "service", "local"); !strings.Contains(out, "Assigned IP 192.168.94.105") || !strings.Contains(out, "announces the addresses") {
		l.t.Errorf("describe prints:\n%s", out)
	}
}

// exhausted checks that a Service that requests an address in use is pending until the address is free.
func (l *poolLab) exhausted() {
	wants := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, loadBalancerIP: 192.168.94.107, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n", name)
	}
	l.apply(wants("one"))
	l.kubectl("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/one", "--timeout=60s")
	l.apply(wants("two"))
	l.kubectl("wait", "--for=condition=network.hyperkube.io/LoadBalancerAddressError", "service/two", "--timeout=60s")
	if out := l.kubectl("describe", "service", "two"); !strings.Contains(out, "the requested address 192.168.94.107 is used by Service default/one") {
		l.t.Errorf("describe prints:\n%s", out)
	}
	l.kubectl("delete", "service", "one")
	l.kubectl("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/two", "--timeout=60s")
	l.answers("192.168.94.107", "Hello from pod web-")
	l.kubectl("delete", "service", "two")
}

// signalSecond sends a signal to the process of the second node, and returns the time.
func (l *poolLab) signalSecond(signal syscall.Signal) time.Time {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.root, "run/hyperkube/nodes/1/hyperkube.pid"))
	if err != nil {
		l.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		l.t.Fatal(err)
	}
	began := time.Now()
	if err := syscall.Kill(pid, signal); err != nil {
		l.t.Fatal(err)
	}
	return began
}

// stopped checks that addresses move when the process of their node stops, and may return to it later.
func (l *poolLab) stopped() {
	l.place("both")
	began := l.signalSecond(syscall.SIGTERM)
	l.moves("both", l.first, 10*time.Second, began, false)
	for _, address := range l.ips("both") {
		l.answers(address, "Hello from pod web-")
	}
	l.hyperkube("up", "--root", l.root)
	if got := l.assigned("both"); got != l.first {
		l.t.Errorf("after the start of the node, the Service is assigned to %s", got)
	}
}

// killed checks that addresses move when the process of their node is killed.
func (l *poolLab) killed() {
	l.place("both")
	began := l.signalSecond(syscall.SIGKILL)
	l.moves("both", l.first, 50*time.Second, began, true) // the duration of a Lease is 40 s
	for _, address := range l.ips("both") {
		l.answers(address, "Hello from pod web-")
	}
	l.hyperkube("up", "--root", l.root)
}

// endpoints checks that the address of a Service with local endpoints moves to the node that has one.
func (l *poolLab) endpoints() {
	from := l.assigned("local")
	to := map[string]string{l.first: l.second, l.second: l.first}[from]
	l.kubectl("patch", "ds", "web", "-p", `{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["`+to+`"]}]}]}}}}}}}`)
	l.answers("192.168.94.105", "node "+to+"\n")
	l.moves("local", to, 10*time.Second, time.Now(), false)
	l.answers("192.168.94.105", "from 192.168.94.90:")
}

// removed checks that Services get other addresses when the pool is replaced, and those of nodes when it is removed.
func (l *poolLab) removed() {
	l.hyperkube("up", "--root", l.root, "--load-balancer-pool=192.168.94.120-192.168.94.121,fd00:192:168:94::200/120")
	l.eventually(10*time.Second, func() error {
		if got := l.ips("both"); len(got) != 2 || got[0] != "192.168.94.120" || got[1] != "fd00:192:168:94::200" {
			return fmt.Errorf("addresses %v", got)
		}
		return nil
	})
	for _, address := range l.ips("both") {
		l.answers(address, "Hello from pod web-")
	}
	l.hyperkube("stop", "--root", l.root)
	l.hyperkube("up", "--root", l.root)
	l.kubectl("delete", "service", "local") // it has the same port
	l.eventually(10*time.Second, func() error {
		for _, text := range l.ips("both") {
			if a := netip.MustParseAddr(text); a == netip.MustParseAddr("198.18.15.1") {
				return nil
			}
		}
		return fmt.Errorf("addresses %v", l.ips("both"))
	})
	if got := l.assigned("both"); got != "" {
		l.t.Errorf("announced by %s", got)
	}
}
