package e2e

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/host/layout"
)

// cisNode is a machine with a control plane and a node, which the checks of the CIS Kubernetes Benchmark
// inspect.
type cisNode struct {
	*machine
	layout layout.Node
	// args are the arguments of the static pods, by component. up has none: its components are
	// configured in the process.
	args    map[string][]string
	kubelet kubeletv1beta1.KubeletConfiguration
}

// cisCheck returns an error if a recommendation is not met. A deviation is returned as one.
type cisCheck func(n *cisNode) error

// deviation is the reason for not following a recommendation.
type deviation string

func (d deviation) Error() string { return string(d) }

// deviates returns a check that reports a deviation.
func deviates(reason string) cisCheck { return func(*cisNode) error { return deviation(reason) } }

// inProcess is the check of flags that do not exist with up.
var inProcess = deviates("up has no such option: the component is configured in its process")

// file checks the mode and the owner of a file or of all files that match a pattern.
func file(most fs.FileMode, pattern func(l layout.Node) string) cisCheck {
	return func(n *cisNode) error {
		paths, err := filepath.Glob(pattern(n.layout))
		if err != nil {
			return err
		}
		if len(paths) == 0 {
			return fmt.Errorf("no file %s", pattern(n.layout))
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if info.Mode().Perm()&^most != 0 {
				return fmt.Errorf("%s has mode %o", path, info.Mode().Perm())
			}
			if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 0 || owner.Gid != 0 {
				return fmt.Errorf("%s belongs to %d:%d", path, owner.Uid, owner.Gid)
			}
		}
		return nil
	}
}

// etc and data return patterns below the directories of a node.
func etc(path string) func(layout.Node) string {
	return func(l layout.Node) string { return filepath.Join(l.Etc, path) }
}
func data(path string) func(layout.Node) string {
	return func(l layout.Node) string { return filepath.Join(l.Data, path) }
}

// flagIs checks the value of a flag of a static pod.
func flagIs(component, name string, ok func(value string) bool) cisCheck {
	return func(n *cisNode) error {
		value, found := n.flag(component, name)
		if !found || !ok(value) {
			return fmt.Errorf("%s has --%s=%s", component, name, value)
		}
		return nil
	}
}

// flagSet checks that a flag of a static pod has a value.
func flagSet(component string, names ...string) cisCheck {
	return func(n *cisNode) error {
		for _, name := range names {
			if err := flagIs(component, name, func(v string) bool { return v != "" })(n); err != nil {
				return err
			}
		}
		return nil
	}
}

// flagUnset checks that a flag of a static pod is not set, or true or false as wanted.
func flagUnset(component, name, or string) cisCheck {
	return func(n *cisNode) error {
		if value, found := n.flag(component, name); found && value != or {
			return fmt.Errorf("%s has --%s=%s", component, name, value)
		}
		return nil
	}
}

// flag returns the value of a flag, which is "true" without "=".
func (n *cisNode) flag(component, name string) (value string, found bool) {
	for _, arg := range n.args[component] {
		key, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if key == name {
			if !ok {
				value = "true"
			}
			return value, true
		}
	}
	return "", false
}

// has returns a check that a comma-separated flag contains a value.
func has(want string) func(string) bool {
	return func(value string) bool { return slices.Contains(strings.Split(value, ","), want) }
}

// is returns a check for a value.
func is(want string) func(string) bool { return func(value string) bool { return value == want } }

// kubelet returns a check of the kubelet's effective configuration.
func kubelet(ok func(c *kubeletv1beta1.KubeletConfiguration) bool) cisCheck {
	return func(n *cisNode) error {
		if !ok(&n.kubelet) {
			return fmt.Errorf("the kubelet's configuration is %+v", n.kubelet)
		}
		return nil
	}
}

// answers checks the status of a request to a server of the machine, without a client certificate.
func answers(status, url string) cisCheck {
	return func(n *cisNode) error {
		if got := strings.TrimSpace(n.sh("curl -sk -o /dev/null -w '%{http_code}' " + url + " || true")); got != status {
			return fmt.Errorf("%s answers %s, want %s", url, got, status)
		}
		return nil
	}
}

// aead checks that servers refuse the cipher suites of TLS 1.2 without authenticated encryption, and TLS 1.1. The
// client has the API server's certificate for etcd.
func aead(ports ...int) cisCheck {
	return func(n *cisNode) error {
		pki := filepath.Join(n.layout.Etc, "pki")
		if len(n.args) == 0 {
			pki = n.layout.PKI()
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver-etcd-client.crt"), filepath.Join(pki, "apiserver-etcd-client.key"))
		if err != nil {
			return err
		}
		for _, port := range ports {
			for name, c := range map[string]*tls.Config{
				"CBC": {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
					tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
					tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA,
				}},
				"TLS 1.1": {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
				"GCM":     {MaxVersion: tls.VersionTLS12},
			} {
				c.InsecureSkipVerify, c.Certificates = true, []tls.Certificate{pair}
				var err error
				n.onThread(func() error {
					var conn *tls.Conn
					if conn, err = tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), c); err == nil {
						conn.Close()
					}
					return nil
				})
				if refused := err != nil && (strings.Contains(err.Error(), "handshake failure") || strings.Contains(err.Error(), "protocol version")); refused != (name != "GCM") {
					return fmt.Errorf("port %d with %s: %w", port, name, err)
				}
			}
		}
		return nil
	}
}

// loopback checks that ports are open on loopback addresses only.
func loopback(ports ...int) cisCheck {
	return func(n *cisNode) error {
		for line := range strings.Lines(n.sh("ss -Hltn")) {
			fields := strings.Fields(line)
			for _, port := range ports {
				if address, ok := strings.CutSuffix(fields[3], fmt.Sprintf(":%d", port)); ok && address != "127.0.0.1" && address != "[::1]" {
					return fmt.Errorf("port %d is open on %s", port, address)
				}
			}
		}
		return nil
	}
}

// each returns a check that runs several.
func each(checks ...cisCheck) cisCheck {
	return func(n *cisNode) error {
		for _, c := range checks {
			if err := c(n); err != nil {
				return err
			}
		}
		return nil
	}
}

// encrypted checks that Secrets in etcd are not stored as they are.
func encrypted(file func(layout.Node) string) cisCheck {
	return func(n *cisNode) error {
		text, err := os.ReadFile(file(n.layout))
		if err != nil {
			return err
		}
		var c struct {
			Resources []struct {
				Resources []string                     `json:"resources"`
				Providers []map[string]json.RawMessage `json:"providers"`
			} `json:"resources"`
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			return err
		}
		if len(c.Resources) == 0 || !slices.Contains(c.Resources[0].Resources, "secrets") || len(c.Resources[0].Providers) == 0 || c.Resources[0].Providers[0]["identity"] != nil {
			return errors.New("Secrets are not encrypted")
		}
		return nil
	}
}

// audited checks the audit log: it names the user of a request, but contains no bodies.
func audited(n *cisNode) error {
	n.kubectl("create", "secret", "generic", "cis", "--from-literal=key=unlikely-to-be-logged")
	log := filepath.Join(n.layout.AuditLogs(), "audit.log")
	var text []byte
	n.eventually(30*time.Second, func() (err error) {
		if text, err = os.ReadFile(log); err == nil && !strings.Contains(string(text), `"name":"cis"`) {
			err = errors.New("the request is not in the audit log")
		}
		return err
	})
	info, err := os.Stat(filepath.Dir(log))
	if err != nil {
		return err
	}
	if info.Mode().Perm() != 0o700 {
		return fmt.Errorf("the directory of the audit log has mode %o", info.Mode().Perm())
	}
	if strings.Contains(string(text), "unlikely") || !strings.Contains(string(text), "kubernetes-admin") || strings.Contains(string(text), `"resource":"leases"`) {
		return errors.New("the audit log contains too much or too little")
	}
	return nil
}

// confined checks that a container has a seccomp filter and a limit of processes.
func confined(n *cisNode) error {
	n.apply(`{apiVersion: v1, kind: Pod, metadata: {name: confined}, spec: {tolerations: [{operator: Exists}], containers: [{name: c, image: IMAGE, command: [/hyperkube, hello]}]}}`)
	n.kubectl("wait", "--for=condition=Ready", "pod/confined", "--timeout=60s")
	pid := strings.TrimSpace(n.sh("pgrep -f '^/hyperkube hello' | head -1"))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return err
	}
	if !strings.Contains(string(status), "Seccomp:\t2") {
		return errors.New("a container without a profile has no seccomp filter")
	}
	return nil
}

// TestCIS checks the recommendations of the CIS Kubernetes Benchmark v1.12, sections 1 to 4, for control planes of
// init and for up. `go test -v` prints the result of each; docs/security.md explains the deviations.
func TestCIS(t *testing.T) {
	const (
		api, cm, sched, etcd = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"
		noFile               = "up has no such file: the component is part of its process"
		pprof                = "profiles are served to users who may get /debug/pprof, by default administrators"
	)
	manifest := func(name string) cisCheck { return file(0o600, etc("manifests/"+name+".yaml")) }
	absent := deviates(noFile)
	rows := []struct {
		id, title string
		init, up  cisCheck
	}{
		{"1.1.1", "API server pod specification: mode 600", manifest(api), absent},
		{"1.1.2", "API server pod specification: owner root", manifest(api), absent},
		{"1.1.3", "controller manager pod specification: mode 600", manifest(cm), absent},
		{"1.1.4", "controller manager pod specification: owner root", manifest(cm), absent},
		{"1.1.5", "scheduler pod specification: mode 600", manifest(sched), absent},
		{"1.1.6", "scheduler pod specification: owner root", manifest(sched), absent},
		{"1.1.7", "etcd pod specification: mode 600", manifest(etcd), absent},
		{"1.1.8", "etcd pod specification: owner root", manifest(etcd), absent},
		{"1.1.9", "CNI configuration: mode 600", deviates("the pod network is built in and has no CNI configuration"), deviates("the pod network is built in and has no CNI configuration")},
		{"1.1.10", "CNI configuration: owner root", deviates("the pod network is built in and has no CNI configuration"), deviates("the pod network is built in and has no CNI configuration")},
		{"1.1.11", "etcd data directory: mode 700", file(0o700, data("etcd")), file(0o700, data("etcd"))},
		{"1.1.12", "etcd data directory: owner etcd", deviates("etcd runs as root, and so does its directory; there is no user etcd"), deviates("etcd is part of the process, which runs as root")},
		{"1.1.13", "admin.conf: mode 600", file(0o600, etc("*admin.conf")), file(0o600, data("admin.conf"))},
		{"1.1.14", "admin.conf: owner root", file(0o600, etc("*admin.conf")), file(0o600, data("admin.conf"))},
		{"1.1.15", "scheduler.conf: mode 600", file(0o600, etc("scheduler.conf")), absent},
		{"1.1.16", "scheduler.conf: owner root", file(0o600, etc("scheduler.conf")), absent},
		{"1.1.17", "controller-manager.conf: mode 600", file(0o600, etc("controller-manager.conf")), absent},
		{"1.1.18", "controller-manager.conf: owner root", file(0o600, etc("controller-manager.conf")), absent},
		{"1.1.19", "PKI directory: owner root", file(0o755, etc("pki")), file(0o755, data("pki"))},
		{"1.1.20", "certificates: mode 644", each(file(0o644, etc("pki/*.crt")), file(0o644, etc("pki/etcd/*.crt"))), file(0o644, data("pki/*.crt"))},
		{"1.1.21", "keys: mode 600", each(file(0o600, etc("pki/*.key")), file(0o600, etc("pki/etcd/*.key"))), file(0o600, data("pki/*.key"))},

		{"1.2.1", "API server: no anonymous requests", deviates("probes and joining nodes need /healthz and cluster-info without credentials; anonymous users may read nothing else"), answers("403", "https://127.0.0.1:6443/api/v1/namespaces")},
		{"1.2.2", "API server: no static tokens", flagUnset(api, "token-auth-file", ""), inProcess},
		{"1.2.3", "API server: DenyServiceExternalIPs", deviates("as in Kubernetes, because Services of ingress controllers use external IPs; set enable-admission-plugins to deny them"), deviates("as in Kubernetes")},
		{"1.2.4", "API server: client certificate for kubelets", flagSet(api, "kubelet-client-certificate", "kubelet-client-key"), inProcess},
		{"1.2.5", "API server: CA of kubelets", deviates("as with kubeadm, serving certificates of joined kubelets are self-signed unless they are rotated (rotate-server-certificates)"), inProcess},
		{"1.2.6", "API server: not AlwaysAllow", flagIs(api, "authorization-mode", is("Node,RBAC")), answers("403", "https://127.0.0.1:6443/api/v1/secrets")},
		{"1.2.7", "API server: Node authorizer", flagIs(api, "authorization-mode", has("Node")), inProcess},
		{"1.2.8", "API server: RBAC", flagIs(api, "authorization-mode", has("RBAC")), answers("403", "https://127.0.0.1:6443/api/v1/secrets")},
		{"1.2.9", "API server: EventRateLimit", deviates("as in Kubernetes; needs limits that depend on the cluster"), deviates("as in Kubernetes")},
		{"1.2.10", "API server: not AlwaysAdmit", flagUnset(api, "enable-admission-plugins", ""), inProcess},
		{"1.2.11", "API server: AlwaysPullImages", deviates("as in Kubernetes; the kubelet verifies that pods may use pulled images (KEP-2535)"), deviates("as in Kubernetes")},
		{"1.2.12", "API server: ServiceAccount", flagUnset(api, "disable-admission-plugins", ""), inProcess},
		{"1.2.13", "API server: NamespaceLifecycle", flagUnset(api, "disable-admission-plugins", ""), inProcess},
		{"1.2.14", "API server: NodeRestriction", flagUnset(api, "disable-admission-plugins", ""), inProcess}, // on by default here
		{"1.2.15", "API server: no profiling", each(answers("403", "https://127.0.0.1:6443/debug/pprof/"), deviates(pprof)), each(answers("403", "https://127.0.0.1:6443/debug/pprof/"), deviates(pprof))},
		{"1.2.16", "API server: audit log", each(flagSet(api, "audit-log-path"), audited), deviates("optional with up: --audit-log-path")},
		{"1.2.17", "API server: audit log for 30 days", flagIs(api, "audit-log-maxage", is("30")), deviates("optional with up: --audit-log-path")},
		{"1.2.18", "API server: 10 old audit logs", flagIs(api, "audit-log-maxbackup", is("10")), deviates("optional with up: --audit-log-path")},
		{"1.2.19", "API server: audit logs of 100 MB", flagIs(api, "audit-log-maxsize", is("100")), deviates("optional with up: --audit-log-path")},
		{"1.2.20", "API server: request timeout", flagUnset(api, "request-timeout", "1m0s"), inProcess},
		{"1.2.21", "API server: service account lookup", flagUnset(api, "service-account-lookup", "true"), inProcess},
		{"1.2.22", "API server: service account key", flagSet(api, "service-account-key-file"), inProcess},
		{"1.2.23", "API server: client certificate for etcd", flagSet(api, "etcd-certfile", "etcd-keyfile"), inProcess},
		{"1.2.24", "API server: TLS", flagSet(api, "tls-cert-file", "tls-private-key-file"), answers("403", "https://127.0.0.1:6443/")},
		{"1.2.25", "API server: client CA", flagSet(api, "client-ca-file"), inProcess},
		{"1.2.26", "API server: CA of etcd", flagSet(api, "etcd-cafile"), inProcess},
		{"1.2.27", "API server: encryption at rest", flagSet(api, "encryption-provider-config"), encrypted(data("pki/encryption.yaml"))},
		{"1.2.28", "API server: encryption providers", encrypted(etc("pki/encryption.yaml")), encrypted(data("pki/encryption.yaml"))},
		{"1.2.29", "API server: strong ciphers", aead(6443), aead(6443)},
		{"1.2.30", "API server: tokens are not extended", deviates("as with kubeadm, for clients that do not reload tokens; see service-account-extend-token-expiration"), deviates("as in Kubernetes")},

		{"1.3.1", "controller manager: terminated pods are deleted", flagUnset(cm, "terminated-pod-gc-threshold", "12500"), inProcess},
		{"1.3.2", "controller manager: no profiling", each(answers("403", "https://127.0.0.1:10257/debug/pprof/"), deviates(pprof)), each(answers("403", "https://127.0.0.1:10257/debug/pprof/"), deviates(pprof))},
		{"1.3.3", "controller manager: service accounts of controllers", flagIs(cm, "use-service-account-credentials", is("true")), inProcess},
		{"1.3.4", "controller manager: service account key", flagSet(cm, "service-account-private-key-file"), inProcess},
		{"1.3.5", "controller manager: root CA", flagSet(cm, "root-ca-file"), inProcess},
		{"1.3.6", "controller manager: RotateKubeletServerCertificate", flagUnset(cm, "feature-gates", ""), inProcess},
		{"1.3.7", "controller manager: loopback", each(flagIs(cm, "bind-address", is("127.0.0.1")), loopback(10257)), loopback(10257)},
		{"1.4.1", "scheduler: no profiling", each(answers("403", "https://127.0.0.1:10259/debug/pprof/"), deviates(pprof)), each(answers("403", "https://127.0.0.1:10259/debug/pprof/"), deviates(pprof))},
		{"1.4.2", "scheduler: loopback", each(flagIs(sched, "bind-address", is("127.0.0.1")), loopback(10259)), loopback(10259)},

		{"2.1", "etcd: TLS", each(flagSet(etcd, "cert-file", "key-file"), aead(2379)), each(loopback(2379), aead(2379))},
		{"2.2", "etcd: client certificates", flagIs(etcd, "client-cert-auth", is("true")), answers("000", "https://127.0.0.1:2379/version")},
		{"2.3", "etcd: no self-signed TLS", flagUnset(etcd, "auto-tls", "false"), inProcess},
		{"2.4", "etcd: TLS for peers", flagSet(etcd, "peer-cert-file", "peer-key-file"), loopback(2380)},
		{"2.5", "etcd: certificates of peers", flagIs(etcd, "peer-client-cert-auth", is("true")), loopback(2380)},
		{"2.6", "etcd: no self-signed TLS for peers", flagUnset(etcd, "peer-auto-tls", "false"), inProcess},
		{"2.7", "etcd: its own CA", flagIs(etcd, "trusted-ca-file", func(v string) bool { return strings.HasSuffix(v, "/etcd/ca.crt") }), file(0o600, data("pki/etcd/ca.key"))},

		{"3.1.1", "client certificates are not for users", deviates("a decision of the operator; OIDC and webhooks can be configured"), deviates("a decision of the operator")},
		{"3.1.2", "service account tokens are not for users", deviates("a decision of the operator"), deviates("a decision of the operator")},
		{"3.1.3", "bootstrap tokens are not for users", deviates("a decision of the operator; tokens expire after a day"), deviates("up creates no bootstrap token")},
		{"3.2.1", "a minimal audit policy", file(0o600, etc("audit-policy.yaml")), deviates("optional with up: --audit-log-path")},
		{"3.2.2", "the audit policy covers key concerns", auditsRBAC, deviates("optional with up: --audit-log-path")},

		{"4.1.1", "kubelet service file: mode 600", deviates("units are only written on machines with systemd; mode 644 as systemd expects, without secrets"), absent},
		{"4.1.2", "kubelet service file: owner root", deviates("units are only written on machines with systemd"), absent},
		{"4.1.3", "kubeconfig of the proxy: mode 600", file(0o600, data("proxy.conf")), absent},
		{"4.1.4", "kubeconfig of the proxy: owner root", file(0o600, data("proxy.conf")), absent},
		{"4.1.5", "kubelet.conf: mode 600", file(0o600, etc("kubelet.conf")), absent},
		{"4.1.6", "kubelet.conf: owner root", file(0o600, etc("kubelet.conf")), absent},
		{"4.1.7", "CA file: mode 644", file(0o644, etc("pki/ca.crt")), file(0o644, data("pki/ca.crt"))},
		{"4.1.8", "CA file: owner root", file(0o644, etc("pki/ca.crt")), file(0o644, data("pki/ca.crt"))},
		{"4.1.9", "kubelet configuration: mode 600", file(0o600, data("node.json")), absent},
		{"4.1.10", "kubelet configuration: owner root", file(0o600, data("node.json")), absent},
		{"4.2.1", "kubelet: no anonymous requests", answers("401", "https://127.0.0.1:10250/pods"), answers("401", "https://127.0.0.1:10250/pods")},
		{"4.2.2", "kubelet: not AlwaysAllow", kubelet(webhook), kubelet(webhook)},
		{"4.2.3", "kubelet: client CA", kubelet(webhook), kubelet(webhook)},
		{"4.2.4", "kubelet: no read-only port", kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool { return c.ReadOnlyPort == 0 }), kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool { return c.ReadOnlyPort == 0 })},
		{"4.2.5", "kubelet: idle streams time out", kubelet(streams), kubelet(streams)},
		{"4.2.6", "kubelet: iptables chains", kubelet(chains), kubelet(chains)},
		{"4.2.7", "kubelet: no hostname override", deviates("--node-name is set by the operator, and checked by the Node authorizer"), deviates("--node-name is set by the operator")},
		{"4.2.8", "kubelet: events", kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool {
			return c.EventRecordQPS == nil || *c.EventRecordQPS > 0
		}), kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool {
			return c.EventRecordQPS == nil || *c.EventRecordQPS > 0
		})},
		{"4.2.9", "kubelet: serving certificate", answers("401", "https://127.0.0.1:10250/"), answers("401", "https://127.0.0.1:10250/")},
		{"4.2.10", "kubelet: client certificate rotates", rotates, inProcess},
		{"4.2.11", "kubelet: serving certificate rotates", deviates("as with kubeadm, off by default because requests must be approved; --rotate-server-certificates"), inProcess},
		{"4.2.12", "kubelet: strong ciphers", aead(10250), aead(10250)},
		{"4.2.13", "kubelet: process limit", kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool { return c.PodPidsLimit != nil && *c.PodPidsLimit > 0 }), kubelet(func(c *kubeletv1beta1.KubeletConfiguration) bool {
			return c.PodPidsLimit != nil && *c.PodPidsLimit > 0
		})},
		{"4.2.14", "kubelet: seccomp by default", each(kubelet(seccomp), confined), each(kubelet(seccomp), confined)},
		{"4.3.1", "kube-proxy: metrics on loopback", loopback(10249), loopback(10249)},
	}
	for _, way := range []string{"init", "up"} {
		t.Run(way, func(t *testing.T) {
			n := newCISNode(t, way)
			for _, row := range rows {
				check := row.init
				if way == "up" {
					check = row.up
				}
				var why deviation
				switch err := check(n); {
				case err == nil:
					t.Logf("%-7s met       %s", row.id, row.title)
				case errors.As(err, &why):
					t.Logf("%-7s deviates  %s (%s)", row.id, row.title, why)
				default:
					t.Errorf("%-7s NOT MET   %s: %v", row.id, row.title, err)
				}
			}
		})
	}
}

func webhook(c *kubeletv1beta1.KubeletConfiguration) bool {
	return c.Authorization.Mode == kubeletv1beta1.KubeletAuthorizationModeWebhook && (c.Authentication.Anonymous.Enabled == nil || !*c.Authentication.Anonymous.Enabled)
}

func streams(c *kubeletv1beta1.KubeletConfiguration) bool {
	return c.StreamingConnectionIdleTimeout.Duration > 0
}

func chains(c *kubeletv1beta1.KubeletConfiguration) bool {
	return c.MakeIPTablesUtilChains == nil || *c.MakeIPTablesUtilChains
}

func seccomp(c *kubeletv1beta1.KubeletConfiguration) bool {
	return c.SeccompDefault != nil && *c.SeccompDefault
}

// rotates checks that the node options renew the kubelet's client certificate.
func rotates(n *cisNode) error {
	text, err := os.ReadFile(filepath.Join(n.layout.Data, "node.json"))
	if err == nil && !strings.Contains(string(text), `"rotateCertificates": true`) {
		err = fmt.Errorf("the node options are %s", text)
	}
	return err
}

// auditsRBAC checks that the audit log contains changes of RBAC and exec, with the user.
func auditsRBAC(n *cisNode) error {
	n.kubectl("create", "clusterrole", "cis", "--verb=get", "--resource=pods")
	n.eventually(30*time.Second, func() error {
		text, err := os.ReadFile(filepath.Join(n.layout.AuditLogs(), "audit.log"))
		if err == nil && !strings.Contains(string(text), `"resource":"clusterroles"`) {
			err = errors.New("the request is not in the audit log")
		}
		return err
	})
	return nil
}

// newCISNode creates a cluster with init or up on a separate machine.
func newCISNode(t *testing.T, way string) *cisNode {
	t.Helper()
	n := &cisNode{machine: &machine{alone: newAlone(t)}, args: map[string][]string{}}
	n.root = filepath.Join(n.dir, "r")
	n.layout = layout.Under(n.root)
	n.sh("ip link add eth0 type veth peer name peer0 && ip link set peer0 up && ip addr add 198.18.9.1/24 dev eth0 && ip link set eth0 up && ip route add default via 198.18.9.254")
	t.Cleanup(func() {
		n.hyperkube("reset", "--root", n.root)
		if left, err := os.ReadDir(n.root); err == nil && len(left) > 0 {
			t.Errorf("files after reset: %v", left)
		}
	})
	n.hyperkube(way, "--root", n.root, "--node-name", "n")
	manifests, err := filepath.Glob(filepath.Join(n.layout.StaticPods(), "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range manifests {
		text, err := os.ReadFile(path)
		var pod corev1.Pod
		if err == nil {
			err = yaml.UnmarshalStrict(text, &pod)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.args[pod.Name] = pod.Spec.Containers[0].Args[1:]
	}
	var effective struct{ KubeletConfig json.RawMessage }
	if err := json.Unmarshal([]byte(n.kubectl("get", "--raw", "/api/v1/nodes/n/proxy/configz")), &effective); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(effective.KubeletConfig, &n.kubelet); err != nil {
		t.Fatal(err)
	}
	return n
}
