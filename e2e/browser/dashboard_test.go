package browser

import (
	"strings"
	"testing"
)

// workloads are objects that the pages show: a workload, one that fails, one that does not fit, and others.
const workloads = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "IMAGE", args: [hello], ports: [{containerPort: 8080}], resources: {requests: {cpu: 50m, memory: 32Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: broken, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: broken}}
  template:
    metadata: {labels: {app: broken}}
    spec:
      containers: [{name: main, image: "IMAGE", args: [no-such-command]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: huge, namespace: default}
spec:
  selector: {matchLabels: {app: huge}}
  template:
    metadata: {labels: {app: huge}}
    spec:
      containers: [{name: main, image: "IMAGE", args: [hello], resources: {requests: {cpu: "4000"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default}
spec:
  containers: [{name: main, image: "IMAGE", args: [hello, get, "--every=1s", "http://web"]}]
---
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: default}
stringData: {user: admin, password: swordfish}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: default}
spec:
  schedule: "0 3 * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: "IMAGE", args: [version]}]}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Ship, plural: ships, singular: ship}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {sails: {type: integer}}}}}}
    additionalPrinterColumns: [{name: Sails, type: integer, jsonPath: .spec.sails}]
`

// deploy applies workloads and waits until they run.
func deploy(t *testing.T) {
	t.Helper()
	apply(t, strings.ReplaceAll(workloads, "IMAGE", image(t)))
	kubectl(t, "wait", "--for=condition=Established", "customresourcedefinition/ships.example.com", "--timeout=30s")
	apply(t, "apiVersion: example.com/v1\nkind: Ship\nmetadata: {name: mary, namespace: default}\nspec: {sails: 7}\n")
	kubectl(t, "rollout", "status", "deployment/web", "--timeout=60s")
}

// TestSmoke opens the dashboard with the one-time URL, and with the session of the browser again.
func TestSmoke(t *testing.T) {
	url := serve(t)
	b := newTab(t, url)
	b.see("Pods by node")
	b.see("1 of 1 ready")
	if address := b.eval(`location.href`); strings.Contains(address, "token") {
		t.Errorf("the address %s still contains the token", address)
	}
	if cookies := b.eval(`document.cookie`); cookies != "" {
		t.Errorf("scripts of the page can read the cookies %s", cookies)
	}
	b.open("/r/core/v1/pods?ns=kube-system")
	b.see("kube-dns")
	b.click("a", "kube-dns")
	b.see("Containers")
	b.clean()

	other := newTab(t, url)
	other.see("Log in")
	for _, p := range other.taken() {
		if !strings.Contains(p, "401") {
			t.Errorf("the browser logged: %s", p)
		}
	}
}

// TestPages shows every page, and checks that the browser logs no error, no violation of the Content-Security-Policy, and
// no request to another host.
func TestPages(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t))
	node := kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	for _, p := range []struct{ name, path, text string }{
		{"overview", "/", "CrashLoopBackOff"},
		{"pods", "/r/core/v1/pods", "kube-dns"},
		{"deployments", "/r/apps/v1/deployments", "broken"},
		{"custom", "/r/example.com/v1/ships", "Sails"},
		{"deployment", "/r/apps/v1/deployments/default/web", "Replica sets"},
		{"service", "/r/core/v1/services/default/web", "Endpoint slices"},
		{"pod", "/r/core/v1/pods/default/client", "Containers"},
		{"node", "/r/core/v1/nodes/-/" + node, "Allocatable"},
		{"yaml", "/r/apps/v1/deployments/default/web?tab=yaml", "apiVersion: apps/v1"},
		{"logs", "/r/core/v1/pods/default/client?tab=logs", "lines"},
		{"logs-deployment", "/r/apps/v1/deployments/default/web?tab=logs", "Download"},
		{"events", "/r/core/v1/pods/default/client?tab=events", "Started"},
		{"terminal", "/r/core/v1/pods/default/client?tab=terminal", "Command"},
		{"secret", "/r/core/v1/secrets/default/login", "password"},
		{"create", "/create", "Apply"},
		{"access", "/access", "You are"},
		{"health", "/health", "The API server is ready"},
		{"network", "/network", "Allowed connections"},
		{"storage", "/storage", "Classes"},
		{"log-search", "/logs", "Log collection is off"},
		{"forwards", "/forwards", "No port is forwarded"},
		{"types", "/types", "Lease"},
		{"missing", "/r/core/v1/pods/default/none", "does not exist"},
		{"unknown", "/r/none/v1/none", "does not serve"},
	} {
		t.Run(p.name, func(t *testing.T) {
			page := &tab{T: t, ctx: b.ctx, url: b.url, events: b.events}
			page.open(p.path)
			page.see(p.text)
			page.until(`!document.querySelector(".loading")`)
			page.shot(p.name)
			page.clean()
		})
	}
}
