package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const loggingPods = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: worker, namespace: shop, labels: {app: worker}}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - {name: main, image: IMAGE, args: [hello, get, --timeout=1s, "http://127.0.0.1:1/number-4711?password=secret"]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, args: [hello]}
`

// loggingConfig redacts passwords and copies records to a file.
const loggingConfig = `
apiVersion: v1
kind: ConfigMap
metadata: {name: hyperkube-logging, namespace: kube-system}
data:
  config.yaml: |
    redact:
    - {match: 'password=\w+', replace: 'password=***'}
    sinks:
    - {name: archive, type: file, select: {namespace: shop}}
`

// TestLogging enables the add-on logging, and searches logs of a pod, also after it was deleted, of nodes, and as a user with few permissions.
func TestLogging(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.37.1/24")
	m.hyperkube("up", "--root", m.root)
	m.fails("log collection is off in this cluster; to enable it, run: hyperkube addon enable logging", "logs")
	m.apply(loggingConfig)
	m.hyperkube("addon", "enable", "logging", "--root", m.root)
	m.eventually(time.Minute, func() error {
		if out, err := m.command(m.binary, "logs").CombinedOutput(); err != nil {
			return fmt.Errorf("logs: %w: %s", err, out)
		}
		return nil
	})
	m.apply(loggingPods)
	m.prints("number-4711?password=***", "logs", "worker", "-n", "shop")
	m.kubectl("delete", "pod", "worker", "-n", "shop", "--wait")
	if out := m.hyperkube("logs", "-l", "app=worker", "-A", "--grep", "number-[0-9]+", "--since", "5m"); !strings.Contains(out, "shop/worker/main  ") || strings.Contains(out, "secret") {
		t.Errorf("logs of the deleted pod: %q", out)
	}
	if out := m.hyperkube("logs", "-n", "shop", "--grep", "absent"); out != "" {
		t.Errorf("without a match: %q", out)
	}
	if out := m.hyperkube("logs", "worker", "-n", "shop", "-o", "json", "--tail", "1"); !strings.Contains(out, `"pod":"worker"`) || strings.Count(out, "\n") != 1 {
		t.Errorf("as JSON: %q", out)
	}
	m.prints("time=", "logs", "--node-logs", "--tail", "20")

	// The file of the sink is in the directory of the cluster.
	m.eventually(time.Minute, func() error {
		files, err := filepath.Glob(filepath.Join(m.root, "var/lib/hyperkube/log-store/sinks/archive.jsonl"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("files of the sink: %v, %w", files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil || !strings.Contains(string(data), "number-4711?password=***") {
			return fmt.Errorf("file of the sink: %q, %w", data, err)
		}
		return nil
	})

	// A user reads the logs of the namespace where a role permits it, and no others.
	m.kubectl("create", "rolebinding", "jane", "--clusterrole=view", "--user=jane", "-n", "shop")
	as := func(args ...string) []string {
		return append([]string{"kubectl", "--as=jane", "get", "--raw"}, args...)
	}
	m.prints("number-4711", as("/apis/logs.hyperkube.io/v1alpha1/namespaces/shop/logs")...)
	m.fails("forbidden", as("/apis/logs.hyperkube.io/v1alpha1/namespaces/default/logs")...)
	m.fails("forbidden", as("/apis/logs.hyperkube.io/v1alpha1/logs")...)
	m.fails("forbidden", as("/apis/logs.hyperkube.io/v1alpha1/nodelogs")...)
	// The permission for the API alone is not enough.
	m.kubectl("create", "clusterrole", "searcher", "--verb=list", "--resource=logs.logs.hyperkube.io")
	m.kubectl("create", "clusterrolebinding", "searcher", "--clusterrole=searcher", "--user=jane")
	m.fails("cannot read logs in the namespace default", as("/apis/logs.hyperkube.io/v1alpha1/namespaces/default/logs")...)
	m.fails("cannot read logs in any namespace", as("/apis/logs.hyperkube.io/v1alpha1/logs")...)

	// Disabling it removes everything but the stored logs, which are found after it was enabled again.
	m.hyperkube("addon", "disable", "logging", "--root", m.root)
	m.prints("!hyperkube-logging", "kubectl", "get", "daemonsets,services,secrets", "-n", "kube-system")
	m.fails("log collection is off", "logs")
	m.hyperkube("addon", "enable", "logging", "--root", m.root)
	m.prints("number-4711", "logs", "worker", "-n", "shop")
}
