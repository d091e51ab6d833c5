package browser

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestAddon logs in to the dashboard in the cluster with the token of a service account, and logs out.
func TestAddon(t *testing.T) {
	root := os.Getenv(insideEnv)
	enable := exec.CommandContext(t.Context(), binary, "addon", "--root", root, "enable", "dashboard")
	if out, err := enable.CombinedOutput(); err != nil {
		t.Fatalf("enabling the add-on: %v\n%s", err, out)
	}
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/hyperkube-dashboard", "--timeout=90s")
	if out := kubectl(t, "auth", "can-i", "--list", "--as=system:serviceaccount:kube-system:hyperkube-dashboard"); strings.Contains(out, "pods") {
		t.Errorf("the dashboard has permissions:\n%s", out)
	}
	apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: viewer, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: viewer, namespace: default}]
`)
	token := strings.TrimSpace(kubectl(t, "create", "token", "viewer", "-n", "default"))

	forward := exec.CommandContext(t.Context(), binary, "kubectl", "-n", "kube-system", "port-forward", "service/hyperkube-dashboard", "18443:443")
	out, err := forward.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = forward.Process.Kill()
		_ = forward.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("port-forward printed %q: %v", line, err)
	}
	b := newTab(t, "https://localhost:18443/", chromedp.Flag("ignore-certificate-errors", true))
	b.see("Log in")
	b.fill("input[name=token]", "wrong")
	b.click("form button", "Log in")
	b.see("does not accept the token")
	for _, p := range b.taken() {
		if !strings.Contains(p, "401") {
			t.Errorf("the browser logged: %s", p)
		}
	}
	b.fill("input[name=token]", token)
	b.click("form button", "Log in")
	b.see("Pods by node")
	b.open("/r/core/v1/pods?ns=kube-system")
	b.see("hyperkube-dashboard-")
	b.open("/access")
	b.see("system:serviceaccount:default:viewer")
	b.taken() // the user may not read nodes and namespaces in all clusters
	b.click("button", "Log out")
	b.see("Log in")
	b.open("/r/core/v1/pods")
	b.see("Log in")
}
