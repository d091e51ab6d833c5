package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCloudProvider starts a cluster for a cloud controller manager. Its node has a taint, and no pods, until the cloud
// controller manager of this program runs with the provider for local machines, which also creates load balancers.
func TestCloudProvider(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	out := a.hyperkube("up", "--root", root, "--cloud-provider", "external", "--node-name", "n1")
	if !strings.Contains(out, `node "n1" has no pods until a cloud controller manager removes its taint node.cloudprovider.kubernetes.io/uninitialized`) {
		t.Errorf("up does not mention the taint:\n%s", out)
	}
	if got := a.kubectl("get", "node", "n1", "-o", "jsonpath={.spec.taints[*].key}"); !strings.Contains(got, "node.cloudprovider.kubernetes.io/uninitialized") {
		t.Errorf("the node has the taints %s", got)
	}
	address := a.kubectl("get", "node", "n1", "-o", `jsonpath={.metadata.annotations.alpha\.kubernetes\.io/provided-node-ip}`)
	if reported := a.kubectl("get", "node", "n1", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`); address == "" || reported != address {
		t.Errorf("the node was provided with the address %q and reports %q", address, reported)
	}
	a.apply(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 8088, targetPort: 8080}]
`)
	a.kubectl("wait", `--for=jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}=Unschedulable`, "--timeout=60s", "pod/web")

	config := filepath.Join(a.dir, "cloud.yaml")
	if err := os.WriteFile(config, []byte("region: home\nzone: cellar\nmachines:\n- name: n1\n  instanceType: big\n  addresses: [{type: ExternalIP, address: 192.0.2.200}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	manager := a.command(a.binary, "cloud-controller-manager", "--kubeconfig", filepath.Join(root, "var/lib/hyperkube/admin.conf"), "--cloud-config", config, "--leader-elect=false")
	log, err := os.Create(filepath.Join(a.dir, "manager.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	manager.Stdout, manager.Stderr = log, log
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = manager.Process.Kill()
		_ = manager.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of the cloud controller manager:\n%s", text)
		}
	})
	a.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/web")
	a.kubectl("-n", "kube-system", "wait", "--for=condition=Available", "--timeout=120s", "deployment/kube-dns")
	node := a.kubectl("get", "node", "n1", "-o", `jsonpath={.spec.providerID} {.metadata.labels.topology\.kubernetes\.io/zone} {.metadata.labels.node\.kubernetes\.io/instance-type} {.status.addresses[?(@.type=="ExternalIP")].address}`)
	if node != "local://n1 cellar big 192.0.2.200" {
		t.Errorf("the node is %s", node)
	}
	a.eventually(time.Minute, func() error {
		if got := a.kubectl("get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"); got != address {
			return fmt.Errorf("the Service has the address %q, want %s", got, address)
		}
		return nil
	})
	if got := a.sh("curl -sf http://" + address + ":8088/"); !strings.Contains(got, "Hello from pod web") {
		t.Errorf("the Service answers %q", got)
	}
}
