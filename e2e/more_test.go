package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSecretsAreEncrypted searches a Secret's data in etcd's files. It also searches a ConfigMap's
// data, which is not encrypted, to verify the search.
func TestSecretsAreEncrypted(t *testing.T) {
	s := newSpace(t)
	s.do("create", "secret", "generic", "hidden", "--from-literal=key=veryhiddenvalue4711")
	s.do("create", "configmap", "shown", "--from-literal=key=plainlyshownvalue4711")
	found := func(text string) bool {
		there := false
		err := filepath.WalkDir("/var/lib/hyperkube/etcd", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			there = there || bytes.Contains(data, []byte(text))
			return err
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return there
	}
	if !found("plainlyshownvalue4711") {
		t.Error("the ConfigMap is not found in etcd's files: the search is wrong")
	}
	if found("veryhiddenvalue4711") {
		t.Error("the Secret is on disk without encryption")
	}
	if got := s.do("get", "secret", "hidden", "-o", "jsonpath={.data.key}"); got != "dmVyeWhpZGRlbnZhbHVlNDcxMQ==" {
		t.Errorf("read back %s", got)
	}
	for _, file := range []string{"pki/ca.key", "pki/sa.key", "pki/encryption.yaml", "admin.conf"} {
		info, err := os.Stat("/var/lib/hyperkube/" + file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

// TestPreflight starts a second cluster, whose ports are in use.
func TestPreflight(t *testing.T) {
	newSpace(t)
	out, err := exec.Command(shared.binary, "up", "--root", t.TempDir()).CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 2 {
		t.Errorf("exit: %v", err)
	}
	for _, port := range []string{"6443", "2379", "10250"} {
		if !strings.Contains(string(out), "port "+port+" is in use by") {
			t.Errorf("no error about port %s in:\n%s", port, out)
		}
	}
	out, err = exec.Command(shared.binary, "nonsense").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `unknown component or command "nonsense"`) || !strings.Contains(string(out), "controller-manager") {
		t.Errorf("unknown flag: %v\n%s", err, out)
	}
}

// TestServices: session affinity, headless Services and ExternalName Services.
func TestServices(t *testing.T) {
	s := newSpace(t)
	s.client()
	s.apply(web(3))
	s.rollout("web")
	s.do("patch", "service", "web", "-p", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: web.` + s.name + `.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {selector: {app: empty}, ports: [{port: 80}]}
`)
	ip := s.do("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	asker := s.do("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	get := func(address string) (string, error) {
		return s.run("", "exec", asker, "--", "/hyperkube", "hello", "get", "http://"+address+"/")
	}
	s.eventually(20*time.Second, func() error {
		seen := map[string]bool{}
		for range 12 {
			out, err := get(ip)
			if err != nil {
				return err
			}
			line, _, _ := strings.Cut(out, ",")
			seen[line] = true
		}
		if len(seen) != 1 {
			return fmt.Errorf("responses with session affinity from %v", seen)
		}
		return nil
	})
	s.eventually(20*time.Second, func() error {
		out := s.exec("client", "nslookup -type=a headless."+s.name+".svc.cluster.local")
		if n := strings.Count(out, "Address: 10."); n < 3 {
			return fmt.Errorf("%d addresses in %s", n, out)
		}
		return nil
	})
	s.contains(s.exec("client", "nslookup -type=srv _http._tcp.headless."+s.name+".svc.cluster.local"), "8080")
	s.contains(s.exec("client", "nslookup -type=a alias."+s.name+".svc.cluster.local"), ip)
	empty := s.do("get", "service", "empty", "-o", "jsonpath={.spec.clusterIP}")
	// The connection is rejected immediately.
	s.eventually(20*time.Second, func() error {
		if out, err := get(empty); err == nil || !strings.Contains(out, "refused") {
			return fmt.Errorf("a service without endpoints: %w: %s", err, out)
		}
		return nil
	})
}

// TestPod: init containers, volumes, environment, termination.
func TestPod(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	s.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {file: first}
---
apiVersion: v1
kind: Pod
metadata: {name: full, labels: {k: v}, annotations: {a: b}}
spec:
  terminationGracePeriodSeconds: 600
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  hostAliases: [{ip: 192.0.2.7, hostnames: [seven]}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: config, configMap: {name: c}}
  - name: all
    projected:
      sources:
      - {configMap: {name: c}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
      - {serviceAccountToken: {path: token, audience: someone, expirationSeconds: 600}}
  initContainers:
  - name: init
    image: ` + busybox + `
    command: [sh, -c, "echo from init > /scratch/file"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "trap 'echo ending; exit 0' TERM; while true; do sleep 0.1; done"]
    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: BOTH, value: "$(IP)-$(LIMIT)"}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    securityContext: {readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: memory, mountPath: /memory}
    - {name: config, mountPath: /config}
    - {name: config, mountPath: /one, subPath: file}
    - {name: all, mountPath: /all}
    startupProbe: {exec: {command: [test, -e, /scratch/file]}, periodSeconds: 1}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
`)
	s.do("wait", "--for=condition=Ready", "pod/full", "--timeout=180s")
	out := s.exec("full", "cat /scratch/file /config/file /one /all/file /all/labels; id; echo $BOTH; cat /etc/hosts; hostname; touch /x 2>&1; grep Cap /proc/self/status; grep NoNewPrivs /proc/self/status; cat /all/token | head -c 3; grep ' /memory ' /proc/mounts")
	ip := s.do("get", "pod", "full", "-o", "jsonpath={.status.podIP}")
	s.contains(out, "from init", "first", `k="v"`, "uid=1000", "2000", ip+"-67108864", "seven", "full", "Read-only file system",
		"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "eyJ", "tmpfs")
	if got := s.do("get", "pod", "full", "-o", "jsonpath={.status.qosClass}"); got != "Burstable" {
		t.Errorf("QoS class %s", got)
	}
	// An update of the ConfigMap changes the volume, but not the subPath mount.
	s.do("patch", "configmap", "c", "-p", `{"data":{"file":"second"}}`)
	s.eventually(30*time.Second, func() error {
		if out := s.exec("full", "cat /config/file; echo; cat /one"); out != "second\nfirst" {
			return fmt.Errorf("files %q", out)
		}
		return nil
	})
	// The deletion of a pod that terminates immediately takes no grace period.
	s.do("delete", "pod", "full", "--timeout=180s")
}

// TestMetrics gets the metrics of the components and of pods.
func TestMetrics(t *testing.T) {
	s := newSpace(t)
	s.client()
	for path, want := range map[string]string{
		"/metrics":                                "apiserver_request_total{",
		"/api/v1/nodes/%s/proxy/metrics":          "go_goroutines",
		"/api/v1/nodes/%s/proxy/metrics/cadvisor": `container_network_receive_bytes_total{container="POD",id="/kubepods/`,
		"/api/v1/nodes/%s/proxy/metrics/resource": "node_memory_working_set_bytes",
		"/api/v1/nodes/%s/proxy/stats/summary":    `"podRef"`,
		"/api/v1/nodes/%s/proxy/configz":          "KubeletConfiguration",
		"/readyz?verbose":                         "readyz check passed",
		"/openapi/v3":                             "/openapi/v3/apis/apps/v1?hash=",
	} {
		node := s.do("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
		s.contains(s.do("get", "--raw", strings.ReplaceAll(path, "%s", node)), want)
	}
}

// TestRun runs a pod that is deleted when the client detaches.
func TestRun(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	out, err := s.run("echo typed; exit\n", "run", "it", "--rm", "-i", "--image="+busybox, "--restart=Never", "--", "sh")
	if err != nil {
		t.Fatal(err)
	}
	s.contains(out, "typed", "deleted")
}

// TestUnread: a command writes a lot and exits while its standard input buffer is full. The client
// receives all output.
func TestUnread(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	s.do("run", "writer", "--image="+busybox, "--restart=Never", "--", "sleep", "1000")
	s.do("wait", "--for=condition=Ready", "pod/writer", "--timeout=180s")
	const much = 5_000_000
	for range 3 {
		out, err := s.run(strings.Repeat("y\n", much), "exec", "-i", "writer", "--", "head", "-c", fmt.Sprint(much), "/dev/zero")
		if n := strings.Count(out, "\x00"); err != nil || n != much {
			t.Errorf("%d of %d bytes: %v", n, much, err)
		}
	}
}

// TestGarbage deletes a Deployment with each of the three propagation policies.
func TestGarbage(t *testing.T) {
	s := newSpace(t)
	left := func() []string {
		pods := s.do("get", "replicasets,pods", "-l", "app=web", "-o", "name")
		return strings.Fields(pods)
	}
	for _, c := range []struct {
		cascade string
		orphans bool
	}{{"background", false}, {"foreground", false}, {"orphan", true}} {
		s.apply(web(1))
		s.rollout("web")
		s.do("delete", "deployment", "web", "--cascade="+c.cascade)
		if c.orphans {
			time.Sleep(time.Second)
			if len(left()) != 2 {
				t.Errorf("orphaned, but remaining objects are %v", left())
			}
			s.do("delete", "replicaset", "-l", "app=web")
		}
		s.eventually(30*time.Second, func() error {
			if l := left(); len(l) > 0 {
				return fmt.Errorf("%s: remaining objects are %v", c.cascade, l)
			}
			return nil
		})
	}
}

// TestTooBig: a pod requests more than the node has, which the event shows. The pod starts after
// its request is reduced.
func TestTooBig(t *testing.T) {
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: big}
spec:
  containers: [{name: c, image: hyperkube, imagePullPolicy: IfNotPresent, args: [hello], resources: {requests: {cpu: "500"}}}]
`)
	s.eventually(20*time.Second, func() error {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "big", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == "PodScheduled" && c.Reason == "Unschedulable" && strings.Contains(c.Message, "0/1 nodes are available: 1 Insufficient cpu.") {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", p.Status.Conditions)
	})
	s.contains(s.do("describe", "pod", "big"), "FailedScheduling", "Insufficient cpu")
}
