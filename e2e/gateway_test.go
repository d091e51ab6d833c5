package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

// secretTLS returns the manifest of a Secret with a new certificate for a name.
func secretTLS(t *testing.T, secret, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata:\n  tls.crt: %s\n  tls.key: %s\n", secret, encode("CERTIFICATE", certificate), encode("PRIVATE KEY", der))
}

const gatewayManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: web
        image: IMAGE
        args: [hello, --drain=2s]
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: main}
spec:
  gatewayClassName: hyperkube
  listeners:
  - {name: http, port: 8000, protocol: HTTP}
  - {name: https, port: 8443, protocol: HTTPS, hostname: secure.example.com, tls: {certificateRefs: [{name: secure}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: main}]
  hostnames: [web.example.com, secure.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /app}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
    backendRefs: [{name: web, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /broken}}]
    backendRefs: [{name: none, port: 80}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  tls: [{hosts: [shop.example.com], secretName: shop}]
  rules:
  - host: shop.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

// curl waits until a response of the gateway contains all texts.
func (m *machine) curl(url string, args []string, want ...string) {
	m.t.Helper()
	m.eventually(20*time.Second, func() error {
		out, err := m.command("curl", append([]string{"-sSki", "-m", "5", url}, args...)...).CombinedOutput()
		for _, text := range want {
			if !strings.Contains(string(out), text) {
				return fmt.Errorf("%s: %w, want %q in\n%s", url, err, text, out)
			}
		}
		return nil
	})
}

// TestGateway enables the add-on, and reaches a Deployment through an HTTPRoute and an Ingress at the address of the node.
// It restarts the pods and the gateway itself under requests, none of which may fail.
func TestGateway(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.33.1/24")
	m.hyperkube("up", "--root", m.root)
	addon := func(args ...string) []string { return append([]string{"addon", "--root", m.root}, args...) }
	m.hyperkube(addon("enable", "gateway")...)
	m.prints("gateway true applied", addon("list")...)
	m.kubectl("-n", "kube-system", "rollout", "status", "daemonset/hyperkube-gateway", "--timeout=120s")
	m.kubectl("wait", "--for=condition=Accepted", "gatewayclass/hyperkube", "--timeout=60s")
	m.apply(secretTLS(t, "secure", "secure.example.com"))
	m.apply(secretTLS(t, "shop", "shop.example.com"))
	m.apply(gatewayManifest)
	m.kubectl("wait", "--for=condition=Programmed", "gateway/main", "--timeout=60s")
	m.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	if ip := m.kubectl("get", "gateway", "main", "-o", "jsonpath={.status.addresses[0].value}"); ip != "198.18.33.1" {
		t.Errorf("the address of the Gateway is %q", ip)
	}
	resolve := func(name string, port int) []string {
		return []string{"--connect-to", fmt.Sprintf("%s:%d:198.18.33.1:%d", name, port, port)}
	}
	m.curl("http://web.example.com:8000/app/x", resolve("web.example.com", 8000), "200 OK", "Hello from pod web-", "GET /x", "X-Forwarded-For: ")
	m.curl("http://web.example.com:8000/none", resolve("web.example.com", 8000), "404 Not Found")
	m.curl("http://web.example.com:8000/broken", resolve("web.example.com", 8000), "500 Internal Server Error")
	m.curl("https://secure.example.com:8443/app/", resolve("secure.example.com", 8443), "HTTP/2 200", "Hello from pod web-", "X-Forwarded-Proto: https")
	m.curl("http://shop.example.com/", resolve("shop.example.com", 80), "200 OK", "Hello from pod web-")
	m.curl("https://shop.example.com/", resolve("shop.example.com", 443), "HTTP/2 200", "Hello from pod web-")
	m.prints("198.18.33.1", "kubectl", "get", "ingress", "shop")
	m.prints("BackendNotFound", "kubectl", "get", "httproute", "web", "-o", "yaml")

	m.testIngress("198.18.33.1")

	// No request fails while pods and the gateway are replaced.
	m.sh("curl -sSk -m 5 -o /dev/null --connect-to web.example.com:8000:198.18.33.1:8000 http://web.example.com:8000/app/")
	script := `for i in $(seq 1 100000); do [ -e ` + m.dir + `/stop ] && break; curl -sS -m 5 -o /dev/null -w '%{http_code}\n' --connect-to web.example.com:8000:198.18.33.1:8000 http://web.example.com:8000/app/ 2>&1; done | sort | uniq -c`
	load := m.command("sh", "-c", script)
	var out strings.Builder
	load.Stdout, load.Stderr = &out, &out
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	m.kubectl("rollout", "restart", "deployment/web")
	m.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	m.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/hyperkube-gateway")
	m.kubectl("-n", "kube-system", "rollout", "status", "daemonset/hyperkube-gateway", "--timeout=120s")
	m.sh("touch " + m.dir + "/stop")
	if err := load.Wait(); err != nil {
		t.Errorf("sending requests: %v", err)
	}
	if fields := strings.Fields(out.String()); len(fields) != 2 || fields[1] != "200" {
		t.Errorf("requests failed while pods were replaced:\n%s", out.String())
	}

	// A disabled add-on leaves no pods and Services, and keeps the objects of the user.
	m.hyperkube(addon("disable", "gateway")...)
	m.prints("!hyperkube-gateway", "kubectl", "get", "daemonsets,services,pods", "-n", "kube-system")
	m.prints("main", "kubectl", "get", "gateways")
	m.hyperkube(addon("enable", "gateway")...)
	m.curl("http://web.example.com:8000/app/x", resolve("web.example.com", 8000), "200 OK")
}
