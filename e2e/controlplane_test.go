package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// site consists of machines on two segments with a router between them.
//
//	198.18.7.0/24: the first and the second machine, and the control plane's endpoint
//	198.18.8.0/24: the third machine, with a smaller MTU
type site struct {
	t        *testing.T
	router   *alone
	machines []*machine
}

// endpoint is the stable address of the control plane, which one of the control plane nodes of the
// first segment has.
const endpoint = "198.18.7.100"

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, router: newAlone(t)}
	router := &machine{alone: s.router}
	router.sh("echo 1 > /proc/sys/net/ipv4/ip_forward && for i in 7 8; do ip link add seg$i type bridge && ip addr add 198.18.$i.254/24 dev seg$i && ip link set seg$i up; done")
	for i := range 3 {
		m := &machine{alone: newAlone(t)}
		m.root = filepath.Join(m.dir, "r")
		s.machines = append(s.machines, m)
		segment, mtu := 7, 1500
		if i == 2 {
			segment, mtu = 8, 1400
		}
		m.sh(fmt.Sprintf("ip link add eth0 mtu %d type veth peer name m%d mtu %d netns /proc/%d/ns/net", mtu, i, mtu, s.router.holder))
		router.sh(fmt.Sprintf("ip link set m%d master seg%d up", i, segment))
		m.sh(fmt.Sprintf("ip addr add 198.18.%d.%d/24 dev eth0 && ip link set eth0 up && ip route add default via 198.18.%d.254", segment, i+1, segment))
		t.Cleanup(func() { _ = m.command(m.binary, "reset", "--root", m.root).Run() })
	}
	s.machines[0].sh("ip addr add " + endpoint + "/32 dev eth0")
	return s
}

// others calls do concurrently for all machines except the first.
func (s *site) others(do func(i int, m *machine)) {
	var all sync.WaitGroup
	for i, m := range s.machines[1:] {
		all.Go(func() { do(i+1, m) })
	}
	all.Wait()
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// TestControlPlane creates a control plane of three nodes, one of which is behind a router. It
// checks the connectivity of pods and services everywhere, disconnects a node, reconnects it, and
// removes another.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.machines[0]
	said := first.hyperkube("init", "--root", first.root, "--node-name", "m0", "--control-plane-endpoint", endpoint, "--upload-certs")
	join := regexp.MustCompile(`hyperkube (join .*--control-plane .*)`).FindStringSubmatch(said)
	if join == nil {
		t.Fatalf("init does not print the control plane join command:\n%s", said)
	}
	words := strings.Fields(join[1])
	key := words[len(words)-1]
	if out := first.hyperkube("token", "create", "--print-join-command", "--certificate-key", key); !strings.HasSuffix(strings.TrimSpace(out), " --control-plane --certificate-key "+key) {
		t.Errorf("the join command is %s", out)
	}
	wrong := append(append([]string(nil), words[:len(words)-1]...), strings.Repeat("0", len(key)), "--root", s.machines[1].root)
	if out, err := s.machines[1].command(first.binary, wrong...).CombinedOutput(); err == nil || !strings.Contains(string(out), "certificate key") {
		t.Errorf("joined with another certificate key: %v\n%s", err, out)
	}
	s.others(func(i int, m *machine) {
		m.report("join", append(words, "--root", m.root, "--node-name", fmt.Sprintf("m%d", i)))
	})
	first.kubectl("taint", "nodes", "--all", "node-role.kubernetes.io/control-plane-")
	first.eventually(30*time.Second, func() error { return s.served(first, "198.18.7.1", "198.18.7.2", "198.18.8.3") })
	if out := first.kubectl("get", "nodes"); strings.Count(out, "control-plane") != 3 {
		t.Errorf("nodes:\n%s", out)
	}
	if members := s.etcdctl(first, "m0", "member", "list"); strings.Count(members, "started, m") != 3 {
		t.Errorf("members of etcd:\n%s", members)
	}

	t.Run("network", func(t *testing.T) { s.network(t) })

	// The first machine is disconnected, and another gets the endpoint's address.
	first.sh("ip link set eth0 down")
	second := s.machines[1]
	second.sh("ip addr add " + endpoint + "/32 dev eth0")
	(&machine{alone: s.router}).sh("ip neigh flush all")
	second.eventually(30*time.Second, func() error {
		out, err := second.command(second.binary, "kubectl", "--request-timeout=20s", "create", "configmap", "without-the-first").CombinedOutput()
		if err != nil && !strings.Contains(string(out), "already exists") {
			return fmt.Errorf("two control plane nodes of three accept no writes: %w\n%s", err, out)
		}
		return nil
	})

	// It is reconnected, and another node is removed.
	first.sh("ip addr del " + endpoint + "/32 dev eth0; ip link set eth0 up && ip route add default via 198.18.7.254")
	second.eventually(30*time.Second, func() error { return s.served(second, "198.18.7.1", "198.18.7.2", "198.18.8.3") })
	third := s.machines[2]
	if out := third.hyperkube("reset", "--root", third.root); !strings.Contains(out, "removed this machine from the etcd cluster") {
		t.Errorf("reset of a control plane node printed\n%s", out)
	}
	if left, err := os.ReadDir(third.root); err == nil && len(left) > 0 {
		t.Errorf("files after reset: %v", left)
	}
	second.eventually(10*time.Second, func() error { return s.served(second, "198.18.7.1", "198.18.7.2") })

	// It joins again, is lost with its disk, and joins once more after the others have removed its
	// etcd member.
	joinArgs := append(slices.Clone(words), "--root", third.root, "--node-name", "m2")
	third.hyperkube(joinArgs...)
	third.hyperkube("down", "--root", third.root)
	if err := os.RemoveAll(third.root); err != nil {
		t.Fatal(err)
	}
	if out, err := third.command(third.binary, joinArgs...).CombinedOutput(); err == nil || !strings.Contains(string(out), "etcdctl member remove") {
		t.Errorf("joined although a lost etcd member has the same name: %v\n%s", err, out)
	}
	lost := regexp.MustCompile(`([0-9a-f]+), \w+, m2,`).FindStringSubmatch(s.etcdctl(second, "m1", "member", "list"))
	if lost == nil {
		t.Fatal("the lost member is not listed")
	}
	s.etcdctl(second, "m1", "member", "remove", lost[1])
	third.hyperkube(joinArgs...)
	second.eventually(30*time.Second, func() error { return s.served(second, "198.18.7.1", "198.18.7.2", "198.18.8.3") })
}

// etcdctl runs etcdctl in the etcd pod of a control plane node.
func (s *site) etcdctl(m *machine, node string, args ...string) string {
	s.t.Helper()
	keys := filepath.Join(m.root, "etc/kubernetes/pki/etcd")
	return m.kubectl(append([]string{"--namespace=kube-system", "exec", "etcd-" + node, "--", "etcdctl",
		"--cacert=" + keys + "/ca.crt", "--cert=" + keys + "/server.crt", "--key=" + keys + "/server.key"}, args...)...)
}

// report runs a command from a goroutine other than the test's, and reports its failure.
func (m *machine) report(what string, args []string) {
	if out, err := m.command(m.binary, args...).CombinedOutput(); err != nil {
		m.t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// served returns an error unless the API server's endpoints are exactly these addresses.
func (s *site) served(by *machine, want ...string) error {
	out, err := by.command(by.binary, "kubectl", "--request-timeout=20s", "get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[*].addresses[*].ip}").Output()
	if err != nil {
		return fmt.Errorf("getting the API server endpoints: %w", err)
	}
	if string(out) != strings.Join(want, " ") {
		return fmt.Errorf("the API server endpoints are %s, want %s", out, want)
	}
	return nil
}

// network checks whether pods of all nodes reach each other, services and DNS, and whether network
// policies are enforced: with routes within the segment, and with a tunnel across the router.
func (s *site) network(t *testing.T) {
	m := s.machines[0]
	defer func() {
		if !t.Failed() && !s.t.Failed() {
			return
		}
		for _, args := range [][]string{
			{"kubectl", "get", "pods", "-A", "-o", "wide"},
			{"kubectl", "get", "nodes", "-o", "custom-columns=:metadata.name,:spec.podCIDR,:metadata.creationTimestamp"},
			{"kubectl", "get", "events", "-A"},
		} {
			out, _ := m.command(m.binary, args...).CombinedOutput()
			t.Logf("%s:\n%s", args, out)
		}
	}()
	m.apply(`
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
      - {name: web, image: IMAGE, args: [hello]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, type: NodePort, ports: [{port: 80, targetPort: 8080, nodePort: 30807}]}
`)
	m.kubectl("rollout", "status", "daemonset/web", "--timeout=180s")
	var pods corev1.PodList
	if m.read(&pods, "pods", "-l", "app=web"); len(pods.Items) != 3 {
		t.Fatalf("%d pods", len(pods.Items))
	}
	ask := func(pod, url string) error {
		out, err := m.command(m.binary, "kubectl", "exec", pod, "--", "/hyperkube", "hello", "get", "--timeout=1s", url).CombinedOutput()
		if err != nil {
			return fmt.Errorf("pod %s, %s: %w\n%s", pod, url, err, out)
		}
		return nil
	}
	for _, from := range pods.Items {
		for _, to := range pods.Items {
			m.eventually(10*time.Second, func() error { return ask(from.Name, "http://"+to.Status.PodIP+":8080/env") })
		}
		m.eventually(10*time.Second, func() error { return ask(from.Name, "http://web.default.svc.cluster.local/") })
		m.eventually(10*time.Second, func() error { return ask(from.Name, "http://"+from.Status.HostIP+":30807/") })
	}

	// Routes on the segment, a tunnel to the other; pods there have its MTU.
	if out := m.sh("ip route show proto 104"); !strings.Contains(out, "via 198.18.7.2 dev eth0") || strings.Count(out, "dev hk-vxlan") != 1 {
		t.Errorf("routes:\n%s", out)
	}
	far := s.machines[2]
	if out := far.sh("ip link show hk-vxlan; ip link show hk-br0"); !strings.Contains(out, "mtu 1350 ") || !strings.Contains(out, "mtu 1400 ") {
		t.Errorf("links with a small MTU:\n%s", out)
	}

	policy := m.command(m.binary, "kubectl", "apply", "-f", "-")
	policy.Stdin = strings.NewReader(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {friend: "yes"}}}]}]
`)
	if out, err := policy.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m.kubectl("label", "pod", pods.Items[0].Name, "friend=yes")
	for i := range pods.Items {
		to := "http://" + pods.Items[(i+1)%3].Status.PodIP + ":8080/"
		m.eventually(10*time.Second, func() error {
			if err := ask(pods.Items[i].Name, to); (err == nil) != (i == 0) {
				return errors.Join(fmt.Errorf("pod %d, friends %v", i, i == 0), err)
			}
			return nil
		})
	}
	m.kubectl("delete", "networkpolicy/friends", "service/web", "daemonset/web")
}
