package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fails runs hyperkube, which must fail with an output that contains text.
func (m *machine) fails(text string, args ...string) {
	m.t.Helper()
	out, err := m.command(m.binary, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), text) {
		m.t.Errorf("hyperkube %s: %v, want %q\n%s", strings.Join(args, " "), err, text, out)
	}
}

// prints waits until hyperkube prints a text, or, if it starts with "!", does not print it.
func (m *machine) prints(text string, args ...string) {
	m.t.Helper()
	m.eventually(time.Minute, func() error {
		out, err := m.command(m.binary, args...).CombinedOutput()
		absent, negated := strings.CutPrefix(text, "!")
		if strings.Contains(strings.Join(strings.Fields(string(out)), " "), absent) == negated {
			return fmt.Errorf("hyperkube %s: %w, want %q: %s", strings.Join(args, " "), err, text, out)
		}
		return nil
	})
}

const autoscaled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: IMAGE, args: [hello], resources: {requests: {cpu: 10m}}}
`

// otherMetrics is the APIService of another metrics server.
const otherMetrics = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: kube-system, name: other}
`

// TestAddons enables and disables add-ons of a running cluster, uses the metrics API, and changes files in the
// directory of manifests.
func TestAddons(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.31.1/24")
	m.hyperkube("up", "--root", m.root)
	addon := func(args ...string) []string { return append([]string{"addon", "--root", m.root}, args...) }

	// The first response has usage, because the server waits until it is measured.
	if out := m.kubectl("top", "nodes", "--no-headers"); !strings.Contains(out, "Mi") {
		t.Errorf("top nodes: %s", out)
	}
	if out := m.kubectl("top", "pods", "-A", "--no-headers"); !strings.Contains(out, "kube-dns-") {
		t.Errorf("top pods: %s", out)
	}
	m.apply(autoscaled)
	m.kubectl("autoscale", "deployment", "web", "--min=1", "--max=2", "--cpu=50%")
	m.kubectl("wait", "--for=condition=ScalingActive", "hpa/web", "--timeout=120s")

	for _, line := range []string{"dns true applied", "local-path true applied", "metrics true applied", "network true applied"} {
		m.prints(line, addon("list")...)
	}
	m.prints(`"status": "applied"`, addon("list", "-o", "json")...)
	m.prints("Deployment kube-system/kube-dns 1 of 1 available", addon("status", "dns")...)
	m.fails("network cannot be disabled: the pod network of every node needs", addon("disable", "network")...)
	m.fails("available add-ons are: cluster-network-policy, dashboard, dns, gateway, local-path, logging, metrics, network", addon("enable", "dsn")...)

	// An object of the user survives, although it has the name of an object of the add-on.
	m.hyperkube(addon("disable", "dns", "local-path")...)
	m.prints("!kube-dns", "kubectl", "get", "deployments,services,serviceaccounts", "-n", "kube-system")
	m.prints("!local-path", "kubectl", "get", "storageclasses")
	m.kubectl("create", "serviceaccount", "kube-dns", "-n", "kube-system")
	m.hyperkube(addon("enable", "dns")...)
	m.fails("exists, but is not part of the add-on", addon("status", "dns")...)
	m.hyperkube(addon("disable", "dns")...)
	m.kubectl("get", "serviceaccount", "kube-dns", "-n", "kube-system")
	m.kubectl("delete", "serviceaccount", "kube-dns", "-n", "kube-system")
	m.hyperkube("stop", "--root", m.root)
	m.hyperkube("up", "--root", m.root)
	m.prints("dns false disabled", addon("list")...)
	m.hyperkube("stop", "--root", m.root)
	m.hyperkube("up", "--root", m.root, "--with=dns")
	m.prints("dns true applied", addon("list")...)

	m.apply(otherMetrics)
	m.prints("metrics true replaced by Service kube-system/other", addon("list")...)
	m.fails("", "kubectl", "top", "nodes")
	m.hyperkube(addon("disable", "metrics")...)
	m.kubectl("get", "apiservice", "v1beta1.metrics.k8s.io")
	m.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")
	m.hyperkube(addon("enable", "metrics")...)
	m.prints("Mi", "kubectl", "top", "nodes", "--no-headers")

	m.manifests()
}

// manifests changes files in the directory of manifests.
func (m *machine) manifests() {
	m.t.Helper()
	dir := filepath.Join(m.root, "var/lib/hyperkube/manifests")
	write := func(name, text string) {
		m.t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	configMap := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n"
	}
	list := []string{"kubectl", "get", "configmaps", "-o", "name"}
	write("app.yaml", configMap("first")+"---\n"+configMap("second"))
	write("kustomized/kustomization.yaml", "namePrefix: my-\nresources: [a.yaml]\n")
	write("kustomized/a.yaml", configMap("app"))
	m.prints("configmap/first", list...)
	m.prints("configmap/second", list...)
	m.prints("configmap/my-app", list...)
	write("app.yaml", configMap("second")+"data: {\n")
	m.prints("problem manifest app.yaml: line", "status", "--root", m.root)
	m.prints("manifest app.yaml: line", "kubectl", "get", "events", "-n", "kube-system", "--field-selector=reason=ApplyFailed")
	write("app.yaml", configMap("second"))
	m.prints("!configmap/first", list...)
	m.prints("!problem", "status", "--root", m.root)
	m.hyperkube("stop", "--root", m.root)
	if err := os.RemoveAll(filepath.Join(dir, "kustomized")); err != nil {
		m.t.Fatal(err)
	}
	m.hyperkube("up", "--root", m.root)
	m.prints("!configmap/my-app", list...)
	m.prints("configmap/second", list...)
}

// initAddons uses and changes the add-ons of a cluster of `init`, where the commands apply them.
func (m *machine) initAddons() {
	m.t.Helper()
	addon := func(args ...string) []string { return append([]string{"addon", "--root", m.root}, args...) }
	m.prints("metrics true applied", addon("list")...)
	m.prints("Deployment kube-system/metrics-server 1 of 1 available", addon("status", "metrics")...)
	m.prints("Mi", "kubectl", "top", "nodes", "--no-headers")
	m.hyperkube(addon("disable", "metrics")...)
	m.prints("metrics false disabled", addon("list")...)
	m.prints("!metrics", "kubectl", "get", "deployments,services,serviceaccounts,rolebindings", "-n", "kube-system")
	m.apply(otherMetrics)
	if out := m.hyperkube(addon("enable", "metrics")...); !strings.Contains(out, "metrics has no effect, because Service kube-system/other serves its API") {
		m.t.Errorf("enabling a replaced add-on: %s", out)
	}
	m.prints("metrics true replaced by Service kube-system/other", addon("list")...)
	m.prints("!metrics-server", "kubectl", "get", "deployments", "-n", "kube-system")
	m.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")
	m.hyperkube(addon("enable", "metrics")...)
	m.prints("Mi", "kubectl", "top", "nodes", "--no-headers")
}
