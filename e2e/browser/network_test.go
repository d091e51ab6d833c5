package browser

import (
	"strings"
	"testing"
)

// routed are a Service with a ready and an unready pod, routes to it, and a policy.
const routed = `
apiVersion: v1
kind: Namespace
metadata: {name: network}
---
apiVersion: v1
kind: Pod
metadata: {name: ready, namespace: network, labels: {app: site}}
spec:
  containers: [{name: main, image: "IMAGE", args: [hello]}]
---
apiVersion: v1
kind: Pod
metadata: {name: unready, namespace: network, labels: {app: site}}
spec:
  containers: [{name: main, image: "IMAGE", args: [hello], readinessProbe: {httpGet: {path: /, port: 1}}}]
---
apiVersion: v1
kind: Service
metadata: {name: site, namespace: network}
spec: {selector: {app: site}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, namespace: network}
spec: {defaultBackend: {service: {name: site, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: site, namespace: network}
spec:
  podSelector: {matchLabels: {app: site}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: site}}}], ports: [{port: 8080}]}]
`

// TestNetwork checks the endpoints and routes of a Service, and the allowed connections of a pod, which change with the policy.
func TestNetwork(t *testing.T) {
	apply(t, strings.ReplaceAll(routed, "IMAGE", image(t)))
	defer kubectl(t, "delete", "namespace", "network", "--wait=false")
	kubectl(t, "-n", "network", "wait", "--for=condition=Ready", "pod/ready", "--timeout=60s")
	b := newTab(t, serve(t))
	b.open("/network?ns=network")
	for _, text := range []string{"1 of 2 ready", "unready (not ready)", "80/TCP", "Ingress front"} {
		b.until(`document.querySelector(".services tbody tr")?.innerText.includes("` + text + `")`)
	}
	b.until(`(() => {
		const s = document.querySelector("select[name=pod]");
		s.value = "network/ready";
		s.dispatchEvent(new Event("change", { bubbles: true }));
		return s.value === "network/ready";
	})()`)
	b.see("pods app=site in namespace network, 8080/TCP (site): network/ready, network/unready")
	b.until(`[...document.querySelectorAll(".connections svg text")].some((e) => e.textContent === "nothing")`)
	b.until(`(document.querySelector(".connections").scrollIntoView(), true)`)
	b.shot("network")
	kubectl(t, "-n", "network", "patch", "networkpolicy", "site", "--type=merge", `--patch={"spec":{"policyTypes":["Ingress"]}}`)
	b.see("any address, all ports, because no policy applies")
	b.clean()
}
