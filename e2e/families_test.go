package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// newNetworked returns a machine with addresses of the IP families on an unconnected link.
func newNetworked(t *testing.T, addresses ...string) *machine {
	t.Helper()
	m := &machine{alone: newAlone(t)}
	m.root = filepath.Join(m.dir, "r")
	m.sh("ip link add eth0 type veth peer name away && ip link set away up && ip link set eth0 up")
	for _, a := range addresses {
		m.sh("ip addr add " + a + " dev eth0 nodad")
	}
	t.Cleanup(func() { _ = m.command(m.binary, "reset", "--root", m.root).Run() })
	return m
}

// reaches waits until the URL responds to requests from a pod, or from the machine if pod is empty.
func (m *machine) reaches(pod, url string) {
	m.t.Helper()
	words := []string{"hello", "get", "--timeout=1s", url}
	if pod != "" {
		words = append([]string{"kubectl", "exec", pod, "--", "/hyperkube"}, words...)
	}
	m.eventually(10*time.Second, func() error {
		if out, err := m.command(m.binary, words...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s from %q: %w\n%s", url, pod, err, out)
		}
		return nil
	})
}

const familiesManifest = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
  annotations: {kubernetes.io/ingress-bandwidth: 80M, kubernetes.io/egress-bandwidth: 40M}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: IMAGE
    args: [hello]
    ports: [{containerPort: 8080, hostPort: 18080}, {containerPort: 5000, hostPort: 15000, protocol: UDP}, {containerPort: 5000, hostPort: 15000, protocol: SCTP}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: client, image: IMAGE, args: [hello]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: PreferDualStack, type: NodePort, ports: [{port: 80, targetPort: 8080, nodePort: 30808}]}
---
apiVersion: v1
kind: Service
metadata: {name: messages}
spec: {selector: {app: web}, ports: [{name: m, port: 5000, protocol: SCTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {selector: {app: empty}, ports: [{port: 80}]}
`

// TestFamilies runs a dual-stack cluster, and an IPv6 cluster on a machine without IPv4.
func TestFamilies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		addresses []string
		flags     []string
		node      []string // expected addresses of the node
	}{
		"both": {
			[]string{"198.18.11.1/24", "fd00:18:11::1/64"},
			[]string{"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56", "--service-cidr=10.96.0.0/16,fd00:10:96::/112"},
			[]string{"198.18.11.1", "fd00:18:11::1"},
		},
		"IPv6": {[]string{"fd00:18:12::1/64"}, []string{"--cluster-cidr=fd00:10:244::/56"}, []string{"fd00:18:12::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newNetworked(t, c.addresses...)
			m.hyperkube(append([]string{"up", "--root", m.root}, c.flags...)...)
			m.apply(familiesManifest)
			m.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=180s")
			var pod corev1.Pod
			m.read(&pod, "pod", "web")
			var svc corev1.Service
			m.read(&svc, "service", "web")
			if n := len(c.node); len(pod.Status.PodIPs) != n || len(pod.Status.HostIPs) != n || len(svc.Spec.ClusterIPs) != n || len(svc.Spec.IPFamilies) != n {
				t.Fatalf("pod %v on %v, service %v", pod.Status.PodIPs, pod.Status.HostIPs, svc.Spec.ClusterIPs)
			}
			m.reaches("client", "http://web.default.svc.cluster.local/")
			for i, node := range c.node {
				if pod.Status.HostIPs[i].IP != node {
					t.Errorf("the node is %v, want %v", pod.Status.HostIPs, c.node)
				}
				for _, from := range []string{"", "client", "web"} {
					m.reaches(from, "http://"+bracketed(pod.Status.PodIPs[i].IP)+":8080/")
					m.reaches(from, "http://"+bracketed(svc.Spec.ClusterIPs[i])+"/")
					m.reaches(from, "http://"+bracketed(node)+":30808/")
					m.reaches(from, "http://"+bracketed(node)+":18080/")
				}
			}
			// Check the rules of Services that cannot be used on every kernel, and of Services
			// without endpoints.
			tool := "iptables-save"
			if strings.Contains(c.node[0], ":") {
				tool = "ip6tables-save"
			}
			m.eventually(10*time.Second, func() error {
				saved := m.sh(tool)
				for _, want := range []string{"-p sctp -m sctp --dport 5000", "-p udp -m udp --dport 15000", "-p sctp -m sctp --dport 15000"} {
					if !strings.Contains(saved, want) {
						return fmt.Errorf("no rule with %s in\n%s", want, saved)
					}
				}
				return nil
			})
			// The proxy may observe the Service later.
			m.eventually(10*time.Second, func() error {
				out, err := m.command(m.binary, "kubectl", "exec", "client", "--", "/hyperkube", "hello", "get", "--timeout=3s", "http://empty/").CombinedOutput()
				switch {
				case err == nil:
					return fmt.Errorf("a service without endpoints responds %s", out)
				case !strings.Contains(string(out), "refused"):
					return fmt.Errorf("a service without endpoints: %w\n%s", err, out)
				}
				return nil
			})
			if out := m.sh("tc qdisc show"); !strings.Contains(out, "tbf") || !strings.Contains(out, "rate 80Mbit") {
				t.Errorf("the bandwidth of the pod is not limited:\n%s", out)
			}
		})
	}
}

// TestNetworkPlugin connects pods with CNI plugins from a configuration: this program's plugin,
// executed like by other runtimes, and one that only records its input.
func TestNetworkPlugin(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.13.1/24")
	recorded := filepath.Join(m.dir, "recorded")
	m.sh("mount -t tmpfs none /opt && mkdir -p /opt/cni/bin && ln -s " + m.binary + " /opt/cni/bin/hyperkube-cni")
	script := "#!/bin/sh\nconfig=$(cat)\necho \"$CNI_COMMAND $CNI_ARGS $config\" | tr -d '\\n' >> " + recorded + "\necho >> " + recorded + "\n" +
		"case $CNI_COMMAND in\nADD) echo \"$config\" | sed 's/.*\"prevResult\"://; s/}$//; s/,\"runtimeConfig\".*//; s/,\"type\".*//';;\n" +
		"VERSION) echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}';;\nesac\n"
	file := filepath.Join(m.dir, "record")
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	m.sh("cp " + file + " /opt/cni/bin/record")
	conf := filepath.Join(m.root, "etc", "cni", "net.d")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [
  {"type": "hyperkube-cni", "podCIDRs": ["10.66.0.0/24"], "root": %q},
  {"type": "record", "capabilities": {"portMappings": true, "bandwidth": true}}]}`, m.root)
	if err := os.WriteFile(filepath.Join(conf, "10-pods.conflist"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	m.hyperkube("up", "--root", m.root, "--cluster-cidr=10.66.0.0/16")
	m.apply(familiesManifest)
	m.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=180s")
	if ip := m.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(ip, "10.66.0.") {
		t.Errorf("the pod has address %q", ip)
	}
	m.reaches("client", "http://web.default.svc.cluster.local/")
	m.kubectl("delete", "pod", "web")
	m.hyperkube("down", "--root", m.root)
	said, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADD IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web", `"hostPort":18080`, `"egressRate":40000000`, "DEL IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web", "STATUS ", "GC "} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the plugin did not receive %s:\n%s", want, said)
		}
	}
	if left := m.sh("ip -o link; iptables-save"); strings.Contains(left, "hk") || strings.Contains(left, "HK-") {
		t.Errorf("after down\n%s", left)
	}
}

// bracketed returns an address in the format of a URL.
func bracketed(ip string) string {
	if strings.Contains(ip, ":") {
		return "[" + ip + "]"
	}
	return ip
}
