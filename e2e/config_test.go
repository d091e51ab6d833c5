package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/host/layout"
)

// configuration is a configuration file with all kinds of documents. AUDIT is the path of the audit log, POLICY that of its policy.
const configuration = `apiVersion: hyperkube.io/v1alpha1
kind: UpConfiguration
clusterDomain: config.example
kubeletExtraArgs:
- {name: node-labels, value: disk=ssd}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
networking:
  podSubnet: 10.77.0.0/16
apiServer:
  certSANs: [api.config.example]
  extraArgs:
  - {name: audit-log-path, value: AUDIT}
  - {name: audit-policy-file, value: POLICY}
  - {name: oidc-issuer-url, value: "https://issuer.config.example"}
  - {name: oidc-client-id, value: kubernetes}
  - {name: feature-gates, value: NodeSwap=true}
  - {name: service-node-port-range, value: 31000-31999}
  - {name: secure-port, value: "7443"}
controllerManager:
  extraArgs:
  - {name: node-cidr-mask-size, value: "26"}
  - {name: secure-port, value: "20257"}
etcd:
  local:
    extraArgs:
    - {name: quota-backend-bytes, value: "3221225472"}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 42
featureGates:
  GracefulNodeShutdown: true
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
conntrack:
  tcpEstablishedTimeout: 1h
---
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: packed
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}
`

// TestConfiguration creates a cluster with a configuration file and checks the effects of its documents. A change replaces the main
// process, and pods keep running. An invalid change is refused and stops nothing.
func TestConfiguration(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	audit, policy, file := filepath.Join(a.dir, "audit.log"), filepath.Join(a.dir, "policy.yaml"), filepath.Join(root, "etc/hyperkube/config.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.NewReplacer("AUDIT", audit, "POLICY", policy).Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	write(file, configuration)
	a.hyperkube("config", "validate", "--root", root)
	a.hyperkube("up", "--root", root)

	node := func(path string) string {
		t.Helper()
		return a.kubectl("get", "nodes", "-o", "jsonpath={.items[0]"+path+"}")
	}
	if got := node(".status.capacity.pods") + " " + node(".metadata.labels.disk") + " " + node(".spec.podCIDR"); got != "42 ssd 10.77.0.0/26" {
		t.Errorf("the node has %s", got)
	}
	name := node(".metadata.name")
	configz := a.kubectl("get", "--raw", "/api/v1/nodes/"+name+"/proxy/configz")
	for _, want := range []string{`"maxPods":42`, `"GracefulNodeShutdown":true`, `"clusterDomain":"config.example"`} {
		if !strings.Contains(configz, want) {
			t.Errorf("%s is not in %s", want, configz)
		}
	}
	a.onThread(func() error {
		conn, err := tls.Dial("tcp", "127.0.0.1:7443", &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer conn.Close()
		if names := conn.ConnectionState().PeerCertificates[0].DNSNames; !strings.Contains(fmt.Sprint(names), "api.config.example") {
			t.Errorf("the certificate is for %v", names)
		}
		conn, err = tls.Dial("tcp", "127.0.0.1:20257", &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	if log, err := os.ReadFile(audit); err != nil || !strings.Contains(string(log), `"auditID"`) {
		t.Errorf("audit log: %.200q, %v", log, err)
	}
	if established := "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"; exists(established) {
		if got := strings.TrimSpace(a.sh("cat " + established)); got != "3600" {
			t.Errorf("the timeout of established connections is %s", got)
		}
	}
	a.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: packed}\nspec:\n  schedulerName: packed\n  containers: [{name: a, image: IMAGE, command: [/hyperkube, hello]}]\n")
	a.kubectl("wait", "pod/packed", "--for=condition=Ready", "--timeout=120s")
	a.apply("apiVersion: v1\nkind: Service\nmetadata: {name: packed}\nspec: {type: NodePort, ports: [{port: 80}]}\n")
	if port := a.kubectl("get", "service", "packed", "-o", "jsonpath={.spec.ports[0].nodePort}"); !strings.HasPrefix(port, "31") {
		t.Errorf("the node port is %s", port)
	}

	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "already running") {
		t.Errorf("up without a change printed\n%s", out)
	}
	a.hyperkube("config", "diff", "--root", root)
	const who = `jsonpath={.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}`
	before, runtime := a.kubectl("get", "pod", "packed", "-o", who), a.runtime(root)

	write(file, strings.Replace(configuration, "maxPods: 42", "maxPod: 43", 1))
	out, err := a.command(a.binary, "up", "--root", root).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 || !strings.Contains(string(out), file+":32: KubeletConfiguration: maxPod: unknown field") {
		t.Errorf("up with an unknown field: %v\n%s", err, out)
	}
	write(file, configuration)
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "already running") {
		t.Errorf("up after a refused change printed\n%s", out)
	}
	// A drop-in file changes one setting.
	write(file+".d/pods.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 43\n")
	out, err = a.command(a.binary, "config", "diff", "--root", root).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "-maxPods: 42\n+maxPods: 43\n") {
		t.Errorf("config diff: %v\n%s", err, out)
	}
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "because KubeletConfiguration has changed") {
		t.Errorf("up after a change printed\n%s", out)
	}
	a.eventually(time.Minute, func() error {
		if got := node(".status.capacity.pods"); got != "43" {
			return fmt.Errorf("the node has capacity for %s pods", got)
		}
		return nil
	})
	if after := a.kubectl("get", "pod", "packed", "-o", who); after != before || a.runtime(root) != runtime {
		t.Errorf("the pod was %s and is %s, the runtime was process %d and is %d", before, after, runtime, a.runtime(root))
	}
	// Flags of the running process are kept.
	if out := a.hyperkube("up", "--root", root, "--verbose"); !strings.Contains(out, "because UpConfiguration has changed") {
		t.Errorf("up with another flag printed\n%s", out)
	}
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "already running") {
		t.Errorf("up without flags printed\n%s", out)
	}
}

// TestConfigurationOfNodes checks that a change replaces only the processes that it concerns: one of the kubelet that of the first node,
// another port of the API server also those of additional nodes.
func TestConfigurationOfNodes(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	l := layout.Under(root)
	pids := func() (main, additional string) {
		t.Helper()
		var out []string
		for _, node := range []layout.Node{l, l.Numbered(1)} {
			pid, err := os.ReadFile(node.PIDFile(layout.MainProcess))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, strings.TrimSpace(string(pid)))
		}
		return out[0], out[1]
	}
	file := filepath.Join(a.dir, "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# no settings\n")
	a.hyperkube("up", "--nodes=2", "--root", root, "--config", file)
	main, additional := pids()

	kubelet := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 43\n"
	write(kubelet)
	a.hyperkube("up", "--root", root)
	nextMain, nextAdditional := pids()
	if nextMain == main || nextAdditional != additional {
		t.Errorf("after a change of the kubelet: processes %s and %s, before %s and %s", nextMain, nextAdditional, main, additional)
	}

	write(kubelet + "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\napiServer: {extraArgs: [{name: secure-port, value: '7443'}]}\n")
	a.hyperkube("up", "--root", root)
	if lastMain, lastAdditional := pids(); lastMain == nextMain || lastAdditional == additional {
		t.Errorf("after a change of the port: processes %s and %s, before %s and %s", lastMain, lastAdditional, nextMain, additional)
	}
	second := a.kubectl("get", "nodes", "-o", "jsonpath={.items[1].metadata.name}")
	a.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: second}\nspec:\n  nodeName: " + second + "\n  containers: [{name: a, image: IMAGE, command: [/hyperkube, hello]}]\n")
	a.kubectl("wait", "pod/second", "--for=condition=Ready", "--timeout=120s")
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "already running") {
		t.Errorf("up without a change printed\n%s", out)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
