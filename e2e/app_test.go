package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/testing/testimage"
)

// web is an application of n replicas behind a Service, with a ConfigMap
// mounted and a Secret in its environment.
func web(n int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {greeting: good morning}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData: {password: swordfish}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      volumes:
      - name: config
        configMap: {name: web}
      containers:
      - name: web
        image: hyperkube
        imagePullPolicy: IfNotPresent
        args: [hello]
        ports: [{containerPort: 8080}]
        env:
        - name: PASSWORD
          valueFrom: {secretKeyRef: {name: web, key: password}}
        volumeMounts:
        - {name: config, mountPath: /config}
        readinessProbe:
          httpGet: {path: /readyz, port: 8080}
          periodSeconds: 1
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`, n)
}

// clientPod is a pod with a shell.
const clientPod = `
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: ` + busybox + `
    command: [sh, -c, "echo started; exec sleep 3600"]
`

// client starts the pod with a shell.
func (s *space) client() {
	s.Helper()
	s.needBusybox()
	s.apply(clientPod)
	s.do("wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
}

func (s *space) rollout(name string) {
	s.Helper()
	s.do("rollout", "status", "deployment/"+name, "--timeout=180s")
}

// nodePort returns the URL at which the host reaches the Service web.
func (s *space) nodePort() string {
	s.Helper()
	return "http://127.0.0.1:" + s.do("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}") + "/"
}

func TestApplication(t *testing.T) {
	s := newSpace(t)
	s.apply(web(3))
	s.client()
	s.rollout("web")

	asker := s.do("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	for _, name := range []string{"web", "web." + s.name, "web." + s.name + ".svc.cluster.local"} {
		s.contains(s.do("exec", asker, "--", "/hyperkube", "hello", "get", "http://"+name+"/"), "Hello from pod web-")
		// The same with another resolver implementation.
		s.contains(s.exec("client", "nslookup -type=a web."+s.name+".svc.cluster.local"), "Address")
	}
	// Each of the three pods responds.
	seen := map[string]bool{}
	for range 60 {
		line, _, _ := strings.Cut(s.get(s.nodePort()), ",")
		seen[line] = true
	}
	if len(seen) != 3 {
		t.Errorf("responses from %v, want three pods", seen)
	}
	pod := s.do("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	ip := s.do("get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	s.contains(s.exec("client", "wget -qO- http://"+ip+":8080/env"), "PASSWORD=swordfish")

	// The pod's service account token authenticates it to the API server, and its projected volume
	// contains the token.
	s.contains(s.do("exec", asker, "--", "/hyperkube", "kubectl", "auth", "whoami"), "system:serviceaccount:"+s.name+":default")
	if out, err := s.run("", "exec", asker, "--", "/hyperkube", "kubectl", "get", "pods"); err == nil || !strings.Contains(out, "Forbidden") {
		t.Errorf("a pod without rights lists pods: %s", out)
	}
	// The field managers of components have upstream's names.
	writers := s.do("get", "pod", pod, "-o", "jsonpath={.metadata.managedFields[*].manager}", "--show-managed-fields")
	s.contains(writers, "kube-controller-manager", "kubelet")
}

// get requests a URL from the host.
func (s *space) get(url string) string {
	s.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return string(data)
}

// TestRollingUpdate replaces all pods during a series of requests, none of which may fail.
func TestRollingUpdate(t *testing.T) {
	s := newSpace(t)
	// A terminating pod serves until every proxy has removed it.
	s.apply(strings.Replace(web(3), "args: [hello]", "args: [hello, --drain=10s]", 1))
	s.rollout("web")
	url := s.nodePort()
	s.get(url)
	var sent, failed atomic.Int64
	var reason atomic.Value
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
		for {
			select {
			case <-stop:
				return
			default:
			}
			sent.Add(1)
			resp, err := client.Get(url)
			if err != nil {
				failed.Add(1)
				reason.Store(err.Error())
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			time.Sleep(2 * time.Millisecond)
		}
	}()
	s.do("set", "env", "deployment/web", "ROUND=2")
	s.rollout("web")
	enough := sent.Load() + 50
	s.eventually(time.Second, func() error {
		if n := sent.Load(); n < enough {
			return fmt.Errorf("%d requests were sent", n)
		}
		return nil
	})
	close(stop)
	<-done
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed: %v", failed.Load(), sent.Load(), reason.Load())
	}
	s.contains(s.do("rollout", "history", "deployment/web"), "1", "2")
	s.do("rollout", "undo", "deployment/web")
	s.rollout("web")
	if out := s.do("get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].env[*].name}"); strings.Contains(out, "ROUND") {
		t.Errorf("environment after rollout undo: %s", out)
	}
}

func TestScale(t *testing.T) {
	s := newSpace(t)
	s.apply(web(3))
	for _, n := range []string{"10", "2"} {
		s.do("scale", "deployment/web", "--replicas="+n)
		s.rollout("web")
		s.eventually(time.Minute, func() error {
			if got := s.do("get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"); got != n {
				return fmt.Errorf("%s ready, want %s", got, n)
			}
			return nil
		})
	}
	s.eventually(time.Minute, func() error {
		if got := strings.Fields(s.do("get", "pods", "-l", "app=web", "-o", "name")); len(got) != 2 {
			return fmt.Errorf("pods %v", got)
		}
		return nil
	})
	// A deleted pod is replaced.
	pod := s.do("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	s.do("delete", "pod", pod, "--wait=false")
	s.rollout("web")
	s.eventually(time.Minute, func() error {
		if got := s.do("get", "pods", "-l", "app=web", "-o", "name"); strings.Contains(got, pod) || len(strings.Fields(got)) != 2 {
			return fmt.Errorf("pods %s", got)
		}
		return nil
	})
}

// TestCrash kills a container. It is restarted immediately, and after the next crash with back-off.
func TestCrash(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "echo round; sleep 1; exit 3"]
`)
	s.eventually(time.Minute, func() error {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "crash", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("no container yet: %s", p.Status.Phase)
		}
		c := p.Status.ContainerStatuses[0]
		if c.RestartCount < 1 || c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" {
			return fmt.Errorf("status %+v", c)
		}
		if last := c.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" {
			return fmt.Errorf("last %+v", c.LastTerminationState)
		}
		return nil
	})
	s.contains(s.do("get", "pod", "crash"), "CrashLoopBackOff")
	s.contains(s.do("logs", "crash", "--previous"), "round")
	s.contains(s.do("describe", "pod", "crash"), "Back-off restarting failed container", "Scheduled", "Started")
}

func TestLogsExecCopyForward(t *testing.T) {
	s := newSpace(t)
	s.client()
	s.contains(s.do("logs", "client"), "started")
	s.contains(s.do("exec", "client", "--", "echo", "one two"), "one two")
	if out, err := s.run("", "exec", "client", "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exit code: %v", err)
	}
	if out, err := s.run("hello through stdin", "exec", "-i", "client", "--", "cat"); err != nil || out != "hello through stdin" {
		t.Errorf("stdin: %q, %v", out, err)
	}
	// script runs kubectl with a terminal.
	tty := exec.CommandContext(s.ctx, "script", "-qec", s.kubectl+" -n "+s.name+" exec -it client -- sh -c 'stty size; tty'", "/dev/null")
	out, err := tty.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "/dev/pts/") {
		t.Errorf("tty: %q, %v", out, err)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do("cp", file, "client:/tmp/there")
	s.contains(s.exec("client", "cat /tmp/there"), "copied")
	s.do("cp", "client:/tmp/there", file+".back")
	if data, err := os.ReadFile(file + ".back"); err != nil || string(data) != "copied" {
		t.Errorf("copied back %q, %v", data, err)
	}

	s.apply(web(1))
	s.rollout("web")
	forward := exec.CommandContext(s.ctx, s.kubectl, "-n", s.name, "port-forward", "deployment/web", ":8080")
	stdout, err := forward.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = forward.Process.Kill(); _ = forward.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("port-forward printed %q: %v", line, err)
	}
	_, rest, _ := strings.Cut(line, "127.0.0.1:")
	port, _, _ := strings.Cut(rest, " ")
	s.contains(s.get("http://127.0.0.1:"+port+"/"), "Hello from pod web-")
}

// TestFollow follows a log until its container terminates.
func TestFollow(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: count}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "for i in $(seq 1 10); do echo line $i; done; until test -e /tmp/go; do sleep 0.1; done; for i in $(seq 11 20); do echo line $i; sleep 0.1; done"]
`)
	s.do("wait", "--for=jsonpath={.status.phase}=Running", "pod/count", "--timeout=180s")
	// The container terminates when its log is followed.
	follow := exec.CommandContext(s.ctx, s.kubectl, "-n", s.name, "logs", "-f", "count")
	follow.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	stdout, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s.exec("count", "touch /tmp/go")
	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, follow.Wait()); err != nil {
		t.Fatal(err)
	}
	out := first + string(rest)
	for i := 1; i <= 20; i++ {
		s.contains(out, fmt.Sprintf("line %d\n", i))
	}
	s.do("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/count", "--timeout=180s")
	s.contains(s.do("get", "pod", "count"), "Completed")
}

func TestNamespaceDeletion(t *testing.T) {
	s := newSpace(t)
	s.apply(web(2))
	s.rollout("web")
	s.do("delete", "namespace", s.name, "--timeout=180s")
	if _, err := s.kube.CoreV1().Namespaces().Get(s.ctx, s.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace: %v", err)
	}
	pods, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods are left, %v", len(pods.Items), err)
	}
}

func TestCanI(t *testing.T) {
	s := newSpace(t)
	s.do("create", "serviceaccount", "reader")
	s.do("create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount="+s.name+":reader")
	as := "--as=system:serviceaccount:" + s.name + ":reader"
	s.eventually(10*time.Second, func() error {
		if out, err := s.run("", "auth", "can-i", "list", "pods", as); err != nil || !strings.Contains(out, "yes") {
			return fmt.Errorf("list pods: %s", out)
		}
		return nil
	})
	if out, err := s.run("", "auth", "can-i", "get", "secrets", as); err == nil || !strings.Contains(out, "no") {
		t.Errorf("get secrets: %s", out)
	}
	if out, err := s.run("", "get", "secrets", as); err == nil || !strings.Contains(out, "Forbidden") {
		t.Errorf("secrets: %s", out)
	}
	s.contains(s.do("auth", "whoami", as, "-o", "json"), "system:serviceaccounts:"+s.name)
}

func TestPull(t *testing.T) {
	s := newSpace(t)
	image, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	address := serveImages(t, "alice", "secret", map[string]v1.Image{"team/tool:v1": image})
	auth, _ := json.Marshal(map[string]any{"auths": map[string]any{address: map[string]string{"username": "alice", "password": "secret"}}})
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, auth, 0o600); err != nil {
		t.Fatal(err)
	}
	s.do("create", "secret", "generic", "pull", "--type=kubernetes.io/dockerconfigjson", "--from-file=.dockerconfigjson="+file)
	pod := func(name, ref, more string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  restartPolicy: Never\n" + more +
			"  containers:\n  - name: c\n    image: " + ref + "\n    command: [echo, pulled]\n"
	}
	s.apply(pod("good", address+"/team/tool:v1", "  imagePullSecrets: [{name: pull}]\n"))
	s.do("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/good", "--timeout=180s")
	s.contains(s.do("logs", "good"), "pulled")
	s.contains(s.do("describe", "pod", "good"), "Successfully pulled image")

	s.apply(pod("bad", address+"/team/missing:v1", "  imagePullSecrets: [{name: pull}]\n"))
	seen := map[string]bool{}
	s.eventually(time.Minute, func() error {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "bad", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				seen[c.State.Waiting.Reason] = true
				if c.State.Waiting.Reason == "ErrImagePull" && !strings.Contains(c.State.Waiting.Message, "team/missing:v1") {
					t.Errorf("message %q", c.State.Waiting.Message)
				}
			}
		}
		if !seen["ErrImagePull"] || !seen["ImagePullBackOff"] {
			return fmt.Errorf("reasons %v", seen)
		}
		return nil
	})
	s.contains(s.do("describe", "pod", "bad"), "Failed to pull image", "Back-off pulling image")
}

// TestInvalid sends an invalid manifest: the error lists all problems.
func TestInvalid(t *testing.T) {
	s := newSpace(t)
	out, err := s.run(`
apiVersion: v1
kind: Pod
metadata: {name: Bad_Name}
spec:
  restartPolicy: Sometimes
  containers:
  - name: c
    image: ""
    ports: [{containerPort: 99999}]
`, "create", "-f", "-")
	if err == nil {
		t.Fatal("the invalid manifest was accepted")
	}
	s.contains(out, "metadata.name", "spec.restartPolicy", "spec.containers[0].image", "spec.containers[0].ports[0].containerPort")
}
