package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// TestClusterNetworkPolicy checks with real connections that ClusterNetworkPolicies precede and follow NetworkPolicies, with
// iptables and with nftables.
func TestClusterNetworkPolicy(t *testing.T) {
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) {
			a := newAlone(t)
			root := filepath.Join(a.dir, "r")
			t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
			a.hyperkube("up", "--root", root, "--proxy-mode", mode, "--with", "cluster-network-policy")
			a.kubectl("create", "namespace", "shop")
			a.apply(`
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default, labels: {app: client}}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
`)
			a.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod", "--all", "-A")
			a.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/clusternetworkpolicies.policy.networking.k8s.io")
			ip := a.kubectl("get", "pod", "web", "-n", "shop", "-o", "jsonpath={.status.podIP}")
			// connects checks whether pods of the two namespaces can connect to the pod web.
			connects := func(what string, shop, other bool) {
				t.Helper()
				for namespace, want := range map[string]bool{"shop": shop, "default": other} {
					a.eventually(time.Minute, func() error {
						out, err := a.command(a.binary, "kubectl", "exec", "-n", namespace, "client", "--",
							"/hyperkube", "kubectl", "--server=http://"+ip+":8080", "--request-timeout=1s", "get", "--raw", "/").CombinedOutput()
						if (err == nil) != want {
							return fmt.Errorf("%s: connection from namespace %s: succeeded %v, want %v; output %s", what, namespace, err == nil, want, out)
						}
						return nil
					})
				}
			}
			connects("without policies", true, true)
			policy := func(name, spec string) {
				t.Helper()
				a.apply("{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: " + name + "}, spec: " + spec + "}")
			}
			const inShop = "{matchLabels: {kubernetes.io/metadata.name: shop}}"
			policy("base", "{tier: Baseline, priority: 1, subject: {namespaces: "+inShop+"}, ingress: [{action: Accept, from: [{namespaces: "+inShop+"}]}, {action: Deny, from: [{namespaces: {}}]}]}")
			connects("with a baseline", true, false)
			a.apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all, namespace: shop}, spec: {podSelector: {}, ingress: [{}]}}")
			connects("with a NetworkPolicy that allows all", true, true)
			policy("admin", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: ["+ip+"/32]}], protocols: [{tcp: {destinationPort: {range: {start: 8000, end: 9000}}}}]}]}")
			connects("with a policy of the administrator", false, false)
			policy("first", "{tier: Admin, priority: 0, subject: {pods: {namespaceSelector: "+inShop+", podSelector: {}}}, egress: [{action: Pass, to: [{networks: [0.0.0.0/0]}]}]}")
			connects("with an exception", true, false)
			a.kubectl("delete", "clusternetworkpolicies", "--all")
			connects("without ClusterNetworkPolicies", true, true)
			policy("base", "{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}")
			connects("with a policy again", false, false)
			a.kubectl("delete", "crd", "clusternetworkpolicies.policy.networking.k8s.io")
			connects("without the definition", true, true)
		})
	}
}
