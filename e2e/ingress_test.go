package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// ingressManifest contains the backends a and b, and the Ingresses of ingressCases.
const ingressManifest = `
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {ingress: a}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: IMAGE, args: [hello], readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {ingress: b}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: IMAGE, args: [hello], readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {ingress: a}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec: {selector: {ingress: b}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: idle}
spec: {selector: {ingress: idle}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: paths}
spec:
  rules:
  - host: paths.example.com
    http:
      paths:
      - {path: /foo, pathType: Prefix, backend: {service: {name: a, port: {name: http}}}}
      - {path: /foo/bar, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}
      - {path: /foo/bar, pathType: Exact, backend: {service: {name: a, port: {number: 80}}}}
      - {path: /slash/, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}
      - {path: /exact, pathType: Exact, backend: {service: {name: b, port: {number: 80}}}}
      - {path: /any, pathType: ImplementationSpecific, backend: {service: {name: b, port: {number: 80}}}}
      - {path: /none, pathType: Prefix, backend: {service: {name: none, port: {number: 80}}}}
      - {path: /port, pathType: Prefix, backend: {service: {name: a, port: {number: 81}}}}
      - {path: /idle, pathType: Prefix, backend: {service: {name: idle, port: {number: 80}}}}
      - {path: /resource, pathType: Prefix, backend: {resource: {kind: ConfigMap, name: c}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: second}
spec:
  rules:
  - host: paths.example.com
    http: {paths: [{path: /second, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}, {path: /foo, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: wildcard}
spec:
  tls: [{hosts: ["*.wild.example.com"], secretName: wild}]
  rules:
  - host: "*.wild.example.com"
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}
  - host: exact.wild.example.com
    http: {paths: [{path: /only, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: certificates}
spec:
  tls: [{hosts: [one.example.com], secretName: one}, {hosts: [two.example.com], secretName: two}, {hosts: [late.example.com], secretName: late}]
  rules:
  - host: one.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}
  - host: two.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: b, port: {number: 80}}}}]}
  - host: late.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: annotated, annotations: {kubernetes.io/ingress.class: hyperkube}}
spec:
  rules: [{host: annotated.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: other}
spec:
  ingressClassName: other
  rules: [{host: other.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]
`

// fallbackManifest is an Ingress for all hosts without a rule.
const fallbackManifest = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: fallback}
spec: {defaultBackend: {service: {name: b, port: {number: 80}}}}
`

// ingressCases are requests and the backend or status code that answers them, as the documentation of Ingress defines.
//
// https://kubernetes.io/docs/concepts/services-networking/ingress/
var ingressCases = []struct{ url, want string }{
	// Paths: elements, not characters; case matters; the longest prefix; exact before prefix.
	{"http://paths.example.com/foo", "a"},
	{"http://paths.example.com/foo/", "a"},
	{"http://paths.example.com/foo/x", "a"},
	{"http://paths.example.com/foobar", "404"},
	{"http://paths.example.com/FOO", "404"},
	{"http://paths.example.com/foo/bar", "a"},
	{"http://paths.example.com/foo/bar/", "b"},
	{"http://paths.example.com/foo/bar/x", "b"},
	{"http://paths.example.com/foo/barx", "a"},
	{"http://paths.example.com/slash", "a"},
	{"http://paths.example.com/slash/x", "a"},
	{"http://paths.example.com/exact", "b"},
	{"http://paths.example.com/exact/", "404"},
	{"http://paths.example.com/exact?x=1", "b"},
	{"http://paths.example.com/any/x", "b"},
	{"http://paths.example.com/", "404"},
	// Invalid backends.
	{"http://paths.example.com/none", "503"},
	{"http://paths.example.com/port", "503"},
	{"http://paths.example.com/idle", "503"},
	{"http://paths.example.com/resource", "503"},
	// Several Ingresses with one host: the paths are merged, and the older Ingress keeps a path of both.
	{"http://paths.example.com/second", "b"},
	// Hosts: case does not matter, a wildcard stands for one label, and an exact host takes precedence.
	{"http://PATHS.example.com/foo", "a"},
	{"http://x.wild.example.com/x", "a"},
	{"http://x.y.wild.example.com/x", "404"},
	{"http://wild.example.com/x", "404"},
	{"http://exact.wild.example.com/only", "b"},
	{"http://unknown.example.com/foo", "404"},
	// TLS, with the certificate of the Ingress.
	{"https://x.wild.example.com/x", "a"},
	{"https://exact.wild.example.com/only", "b"},
	// Without its Secret, a host is served over HTTP only.
	{"http://late.example.com/", "a"},
	// Classes: by field (the default class), by annotation, and another one.
	{"http://annotated.example.com/", "a"},
	{"http://other.example.com/", "404"},
}

// testIngress checks which backend answers requests for Ingresses at an address of the gateway.
func (m *machine) testIngress(address string) {
	m.t.Helper()
	m.apply(secretTLS(m.t, "wild", "*.wild.example.com"))
	m.apply(secretTLS(m.t, "one", "one.example.com"))
	m.apply(secretTLS(m.t, "two", "two.example.com"))
	m.apply(ingressManifest)
	m.kubectl("wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=60s")
	for _, c := range ingressCases {
		m.ingressAnswers(address, c.url, c.want)
	}
	m.prints(address, "kubectl", "get", "ingress", "wildcard")
	m.prints("!"+address, "kubectl", "get", "ingress", "other")
	m.prints("backends must be Services", "kubectl", "describe", "ingress", "paths")

	// The server name selects the certificate. A host whose Secret does not exist has none, until the Secret is created.
	m.presents(address, "one.example.com", "one")
	m.presents(address, "two.example.com", "two")
	m.prints("TLS is not served for the hosts of Secret late: it does not exist", "kubectl", "describe", "ingress", "certificates")
	m.rejects(address, "https://late.example.com/", "unrecognized name")
	m.apply(secretTLS(m.t, "late", "late.example.com"))
	m.presents(address, "late.example.com", "late")

	// Changes: a new default backend, another backend, and deletion.
	m.apply(fallbackManifest)
	m.ingressAnswers(address, "http://unknown.example.com/foo", "b")
	m.ingressAnswers(address, "http://paths.example.com/foo", "a")
	m.kubectl("patch", "ingress", "annotated", "--type=json", `-p=[{"op":"replace","path":"/spec/rules/0/http/paths/0/backend/service/name","value":"b"}]`)
	m.ingressAnswers(address, "http://annotated.example.com/", "b")
	m.kubectl("delete", "ingress", "fallback", "annotated")
	m.ingressAnswers(address, "http://unknown.example.com/foo", "404")
	m.ingressAnswers(address, "http://annotated.example.com/", "404")
}

// ingressAnswers waits until the gateway at address answers a request with a response of the backend want, or with the status code
// want.
func (m *machine) ingressAnswers(address, url, want string) {
	m.t.Helper()
	port := "80"
	if strings.HasPrefix(url, "https:") {
		port = "443"
	}
	m.eventually(20*time.Second, func() error {
		out, err := m.command("curl", "-sSk", "-m", "5", "-w", `\n%{http_code}`, "--connect-to", "::"+address+":"+port, url).CombinedOutput()
		text := string(out)
		if strings.HasPrefix(text, "Hello from pod "+want) && strings.HasSuffix(text, "200") || strings.HasSuffix(text, "\n"+want) {
			return nil
		}
		return fmt.Errorf("%s: %w, want %s from\n%s", url, err, want, out)
	})
}

// presents waits until the gateway at address serves a host with the certificate in a Secret.
func (m *machine) presents(address, host, secret string) {
	m.t.Helper()
	file := filepath.Join(m.dir, secret+".crt")
	m.sh(m.binary + " kubectl get secret " + secret + ` -o jsonpath='{.data.tls\.crt}' | base64 -d >` + file)
	m.eventually(20*time.Second, func() error {
		out, err := m.command("curl", "-sS", "-m", "5", "-o", "/dev/null", "--cacert", file, "--connect-to", "::"+address+":443", "https://"+host+"/").CombinedOutput()
		if err != nil {
			return fmt.Errorf("requesting https://%s/ with the certificate of Secret %s as root: %w\n%s", host, secret, err, out)
		}
		return nil
	})
}

// rejects checks that a request to the gateway at address fails with an error of TLS that contains a text.
func (m *machine) rejects(address, url, want string) {
	m.t.Helper()
	out, err := m.command("curl", "-sSk", "-m", "5", "--connect-to", "::"+address+":443", url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), want) {
		m.t.Errorf("%s: error %v, want %q in\n%s", url, err, want, out)
	}
}
