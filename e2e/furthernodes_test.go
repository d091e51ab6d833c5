package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const furtherManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: SECOND
  terminationGracePeriodSeconds: 0
  containers:
  - {name: web, image: IMAGE, args: [hello]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: FIRST
  terminationGracePeriodSeconds: 0
  containers:
  - {name: client, image: IMAGE, args: [hello]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: PreferDualStack, type: NodePort, ports: [{port: 80, targetPort: 8080, nodePort: 30808}]}
`

// TestFurtherFamilies: additional nodes of a machine have addresses of the pods' IP families, and
// reach each other. A host firewall that accepts only established connections and forwards nothing
// must not block them.
func TestFurtherFamilies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		addresses, flags []string
		families         string // of an additional node: 4 and 6 in order
	}{
		"both": {
			[]string{"198.18.13.1/24", "fd00:18:13::1/64"},
			[]string{"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56", "--service-cidr=10.96.0.0/16,fd00:10:96::/112", "--with=metrics"}, "46",
		},
		"IPv6": {[]string{"fd00:18:14::1/64"}, []string{"--cluster-cidr=fd00:10:244::/56"}, "6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newNetworked(t, c.addresses...)
			for _, iptables := range []string{"iptables", "ip6tables"} {
				m.sh(iptables + " -P INPUT DROP && " + iptables + " -P FORWARD DROP && " + iptables + " -A INPUT -i lo -j ACCEPT && " +
					iptables + " -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
			}
			m.sh("ip6tables -A INPUT -p icmpv6 -j ACCEPT && iptables -A INPUT -j REJECT && ip6tables -A INPUT -j REJECT")
			m.hyperkube(append([]string{"up", "--root", m.root, "--nodes=2"}, c.flags...)...)
			var nodes corev1.NodeList
			m.read(&nodes, "nodes")
			slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
			if len(nodes.Items) != 2 {
				t.Fatalf("%d nodes", len(nodes.Items))
			}
			families := ""
			for _, a := range nodes.Items[1].Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					families += familyOf(a.Address)
				}
			}
			if families != c.families {
				t.Errorf("the additional node's addresses are %v", nodes.Items[1].Status.Addresses)
			}
			m.apply(strings.NewReplacer("FIRST", nodes.Items[0].Name, "SECOND", nodes.Items[1].Name).Replace(furtherManifest))
			m.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=180s")
			var web corev1.Pod
			m.read(&web, "pod", "web")
			if len(web.Status.PodIPs) != len(c.families) {
				t.Errorf("the pod's addresses are %v", web.Status.PodIPs)
			}
			for _, ip := range web.Status.PodIPs {
				m.reaches("client", "http://"+bracketed(ip.IP)+":8080")
				m.reaches("", "http://"+bracketed(ip.IP)+":8080")
			}
			for ip := range strings.FieldsSeq(m.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}")) {
				m.reaches("client", "http://"+bracketed(ip))
			}
			if slices.Contains(c.flags, "--with=metrics") {
				m.usage(nodes.Items)
			}
			for _, a := range nodes.Items[1].Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					m.reaches("", "http://"+bracketed(a.Address)+":30808")
				}
			}
		})
	}
}

// usage waits until the metrics add-on returns the usage of all nodes and of a pod.
func (m *machine) usage(nodes []corev1.Node) {
	m.t.Helper()
	m.eventually(time.Minute, func() error {
		out, err := m.command(m.binary, "kubectl", "top", "nodes", "--no-headers").CombinedOutput()
		if err != nil {
			return fmt.Errorf("top nodes: %w: %s", err, out)
		}
		for i := range nodes {
			if !slices.ContainsFunc(strings.Split(string(out), "\n"), func(line string) bool {
				f := strings.Fields(line)
				return len(f) == 5 && f[0] == nodes[i].Name && strings.HasSuffix(f[1], "m") && strings.HasSuffix(f[3], "Mi")
			}) {
				return fmt.Errorf("top nodes does not list %s: %s", nodes[i].Name, out)
			}
		}
		if out, err := m.command(m.binary, "kubectl", "top", "pod", "web", "--no-headers").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "web ") {
			return fmt.Errorf("top pod: %w: %s", err, out)
		}
		return nil
	})
}

func familyOf(ip string) string {
	if strings.Contains(ip, ":") {
		return "6"
	}
	return "4"
}
