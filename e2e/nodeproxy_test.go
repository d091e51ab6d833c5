package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestForgedNode registers nodes whose kubelet is another server of the control plane, and checks that the node proxy
// grants nothing there: loopback addresses are refused, and at other addresses the API server's client certificate for
// kubelets is not allowed to read Secrets. Kubelets accept the certificate.
func TestForgedNode(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() {
		if out, err := a.command(a.binary, "reset", "--root", root).CombinedOutput(); err != nil {
			t.Errorf("reset: %v\n%s", err, out)
		}
	})
	a.hyperkube("up", "--root", root)
	dns := strings.TrimSpace(a.kubectl("get", "pod", "-n", "kube-system", "-l", "k8s-app=kube-dns", "-o", "name"))
	if out := a.kubectl("exec", "-n", "kube-system", dns, "--", "hyperkube", "version"); !strings.Contains(out, "v1.") {
		t.Errorf("exec: %s", out)
	}
	a.kubectl("logs", "-n", "kube-system", dns)
	own := strings.Fields(a.kubectl("get", "node", "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.addresses[?(@.type=='InternalIP')].address}"))
	for _, path := range []string{"healthz", "metrics", "pods", "configz", "stats/summary"} {
		a.kubectl("get", "--raw", "/api/v1/nodes/"+own[0]+"/proxy/"+path)
	}

	for i, c := range []struct{ kind, address, port, path, want string }{
		{"InternalIP", "127.0.0.1", "6443", "api/v1/namespaces/default/secrets", "address not allowed"},
		{"InternalIP", "127.0.0.1", "10257", "healthz", "address not allowed"},
		{"InternalIP", "::1", "6443", "api/v1/namespaces/default/secrets", "address not allowed"},
		{"Hostname", "localhost", "6443", "api/v1/namespaces/default/secrets", "address not allowed"},
		{"InternalIP", own[1], "6443", "api/v1/namespaces/default/secrets", "forbidden"},
		{"InternalIP", own[1], "10257", "healthz", "connection refused"},
	} {
		name := fmt.Sprintf("forged-%d", i)
		a.apply("apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n")
		a.kubectl("patch", "node", name, "--subresource=status", "-p", fmt.Sprintf(
			`{"status":{"addresses":[{"type":%q,"address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, c.kind, c.address, c.port))
		out, err := a.command(a.binary, "kubectl", "get", "--raw", "/api/v1/nodes/"+name+"/proxy/"+c.path).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("the proxy of a node at %s:%s: %v, want %q\n%s", c.address, c.port, err, c.want, out)
		}
	}
}
