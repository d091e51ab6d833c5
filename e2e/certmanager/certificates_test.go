//go:build linux

package certmanager

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hyperkube/e2e/suite"
)

const solverImage = "example.com/acmesolver:test"

// backend is a Service with a pod.
const backend = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: hyperkube, args: [hello], readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// issuers are a ClusterIssuer that solves challenges with HTTPRoutes, and one that does with Ingresses.
const issuers = `
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: gateway}
spec:
  acme:
    server: DIRECTORY
    caBundle: BUNDLE
    privateKeySecretRef: {name: account-gateway}
    solvers: [{http01: {gatewayHTTPRoute: {parentRefs: [{kind: Gateway, name: main, namespace: default, sectionName: http}]}}}]
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: ingress}
spec:
  acme:
    server: DIRECTORY
    caBundle: BUNDLE
    privateKeySecretRef: {name: account-ingress}
    solvers: [{http01: {ingress: {ingressClassName: hyperkube}}}]
`

// gateway is a Gateway whose certificate does not exist yet, with a route.
const gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: main, annotations: {cert-manager.io/cluster-issuer: gateway}}
spec:
  gatewayClassName: hyperkube
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: gateway.example.com, tls: {certificateRefs: [{name: gateway-example}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: main}]
  hostnames: [gateway.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`

// ingress is an Ingress whose certificate does not exist yet.
const ingress = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {cert-manager.io/cluster-issuer: ingress}}
spec:
  ingressClassName: hyperkube
  tls: [{hosts: [ingress.example.com], secretName: ingress-example}]
  rules:
  - host: ingress.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

// TestCertificates checks that a Gateway and an Ingress get certificates of an ACME server, and that clients that trust
// its root are served with them.
func TestCertificates(t *testing.T) {
	c := suite.Get(t)
	c.Import(t, suite.Image{Package: "hyperkube/e2e/certmanager/acmesolver", Names: []string{solverImage}, User: "1000"})
	program := suite.Build(t, "hyperkube/e2e/certmanager/controller")
	nameserver := startDNS(t)
	acme := startACME(t, nameserver)
	kubectl(t, c, "", append([]string{"apply", "--server-side"}, definitions(t)...)...)
	kubectl(t, c, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	startController(t, program, nameserver)
	apply(t, c, backend)
	apply(t, c, strings.NewReplacer("DIRECTORY", acme.directory, "BUNDLE", acme.bundle).Replace(issuers))
	kubectl(t, c, "", "wait", "--for=condition=Ready", "clusterissuer", "--all", "--timeout=60s")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	for name, manifest := range map[string]string{"gateway": gateway, "ingress": ingress} {
		t.Run(name, func(t *testing.T) {
			apply(t, c, manifest)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(kubectl(t, c, "", "get", "orders,challenges,httproutes,ingresses,pods,services,secrets", "-A", "-o", "wide"))
					t.Log(kubectl(t, c, "", "describe", "certificates,orders,challenges", "-A"))
				}
			})
			certificate := "certificate/" + name + "-example"
			kubectl(t, c, "", "wait", "--for=create", certificate, "--timeout=60s")
			kubectl(t, c, "", "wait", "--for=condition=Ready", certificate, "--timeout=180s")
			served(t, acme, name+".example.com")
		})
	}
}

// definitions returns the flags of kubectl that select the CustomResourceDefinitions of cert-manager.
func definitions(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	if err != nil {
		t.Fatalf("finding the module of cert-manager: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "deploy/crds/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions of cert-manager: %v", len(files), err)
	}
	var flags []string
	for _, file := range files {
		flags = append(flags, "-f", file)
	}
	return flags
}

// startController starts the controller of cert-manager until the end of the test. A failed test prints its log.
func startController(t *testing.T, program, nameserver string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(program, "-solver-image", solverImage, "-nameserver", nameserver)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited already, which Wait reports
		if err := cmd.Wait(); err != nil {
			t.Errorf("running the controller: %v", err)
		}
		if t.Failed() {
			t.Logf("log of the controller:\n%s", log.String())
		}
	})
}

// served waits until the node serves a host over HTTPS with a certificate that the ACME server issued.
func served(t *testing.T, acme acmeServer, host string) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: acme.roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(nodeAddress, "443"))
		},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	get := func() error {
		response, err := client.Get("https://" + host + "/")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", response.Status)
		}
		return nil
	}
	// No event reports that the gateway serves a new Secret, so the request is repeated.
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = get(); err == nil {
			return
		}
	}
	t.Errorf("requesting https://%s/: %v", host, err)
}

// apply applies a manifest.
func apply(t *testing.T, c suite.Cluster, manifest string) {
	t.Helper()
	kubectl(t, c, manifest, "apply", "-f", "-")
}

// kubectl runs kubectl with an input, and returns its output.
func kubectl(t *testing.T, c suite.Cluster, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(c.Binary, append([]string{"kubectl"}, args...)...)
	cmd.Env, cmd.Stdin = os.Environ(), strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}
