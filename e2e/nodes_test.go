package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// multiNode is a cluster of several nodes on an isolated machine.
type multiNode struct {
	*alone
	root  string
	first string // name of the first node
}

// TestNodes runs three nodes. It tests their network, network policies, the loss of two of them in
// two ways, their return, and their removal.
func TestNodes(t *testing.T) {
	a := newAlone(t)
	f := &multiNode{alone: a, root: filepath.Join(a.dir, "r")}
	before := a.network()
	t.Cleanup(func() {
		if t.Failed() {
			f.printLogs()
		}
		// Independent of the test's timeout.
		var cancel context.CancelFunc
		last := *a
		last.ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		_ = last.command(a.binary, "reset", "--root", f.root).Run()
	})
	a.hyperkube("up", "--nodes=3", "--node-monitor-grace-period=20s", "--root", f.root)
	f.first = strings.Fields(f.kubectl("get", "node", "--sort-by=.metadata.name", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	f.apply(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: hyperkube, imagePullPolicy: Never, args: [hello], ports: [{name: http, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http, nodePort: 30080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 3
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: app}}}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers:
      - {name: app, image: hyperkube, imagePullPolicy: Never, args: [hello], ports: [{name: http, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {selector: {app: app}, ports: [{port: 80, targetPort: http}]}
`)
	f.kubectl("rollout", "status", "ds/web", "--timeout=180s")
	f.kubectl("rollout", "status", "deploy/app", "--timeout=180s")
	t.Run("network", f.sub((*multiNode).network3))
	t.Run("names", f.sub((*multiNode).names))
	t.Run("policies", f.sub((*multiNode).policies))
	t.Run("flushed", f.sub((*multiNode).flushed))
	t.Run("loss and return", f.sub((*multiNode).loss))
	t.Run("removal", f.sub((*multiNode).removal))
	a.hyperkube("down", "--root", f.root)
	if after := a.network(); after != before {
		t.Errorf("the machine's network after down:\n%s\nbefore:\n%s", after, before)
	}
	if out := a.hyperkube("reset", "--root", f.root); !strings.Contains(out, "deleted") {
		t.Error(out)
	}
	if entries, err := os.ReadDir(f.root); err == nil && len(entries) > 0 {
		t.Errorf("files after reset: %v", entries)
	}
}

func (f *multiNode) sub(test func(*multiNode)) func(*testing.T) {
	return func(t *testing.T) {
		a := *f.alone
		a.t = t
		test(&multiNode{alone: &a, root: f.root, first: f.first})
	}
}

// printLogs prints the end of all logs.
func (f *multiNode) printLogs() {
	files, _ := filepath.Glob(filepath.Join(f.root, "var/lib/hyperkube/logs/*.log")) // the pattern is valid
	further, _ := filepath.Glob(filepath.Join(f.root, "var/lib/hyperkube/nodes/*/logs/*.log"))
	for _, file := range append(files, further...) {
		if data, err := os.ReadFile(file); err == nil {
			f.t.Logf("--- %s\n%s", file, data[max(0, len(data)-6000):])
		}
	}
}

// pods returns the pods with a label.
func (f *multiNode) pods(selector string) []corev1.Pod {
	f.t.Helper()
	var list corev1.PodList
	f.read(&list, "pods", "-l", selector)
	return list.Items
}

// ask requests a URL from a pod.
func (f *multiNode) ask(pod, url string) error {
	out, err := f.command(f.binary, "kubectl", "exec", pod, "--", "hyperkube", "hello", "get", "--timeout=2s", url).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Hello from pod") {
		return fmt.Errorf("from %s to %s: %w: %s", pod, url, err, out)
	}
	return nil
}

// fetch requests a URL from the first node's host.
func (f *multiNode) fetch(url string, want ...string) error {
	out, err := f.command("curl", "-s", "-S", "-m", "20", url).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w %s", url, err, out)
	}
	for _, part := range append(want, "from pod") {
		if !strings.Contains(string(out), part) {
			return fmt.Errorf("%s printed %q", url, out)
		}
	}
	return nil
}

// reach sends requests from every web pod to every other.
func (f *multiNode) reach() {
	f.t.Helper()
	pods := f.pods("app=web")
	for _, from := range pods {
		for _, to := range pods {
			f.eventually(5*time.Second, func() error { return f.ask(from.Name, "http://"+to.Status.PodIP+":8080/") })
		}
	}
}

func (f *multiNode) network3() {
	f.reach()
	for _, pod := range f.pods("app=web") {
		f.eventually(5*time.Second, func() error { return f.ask(pod.Name, "http://web.default.svc.cluster.local/") })
		// Node ports respond on every node, and every kubelet is reachable.
		f.eventually(5*time.Second, func() error { return f.fetch("http://" + pod.Status.HostIP + ":30080/") })
		f.kubectl("logs", pod.Name)
	}
	// A pod can reach itself through another node's node port.
	machine := f.kubectl("get", "node", f.first, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	for _, pod := range f.pods("app=web") {
		if pod.Spec.NodeName == f.first {
			continue
		}
		f.kubectl("label", "pod", pod.Name, "self="+pod.Spec.NodeName)
		name := "self-" + pod.Name
		f.kubectl("create", "service", "nodeport", name, "--tcp=80:8080")
		f.kubectl("set", "selector", "service", name, "self="+pod.Spec.NodeName)
		port := f.kubectl("get", "service", name, "-o", "jsonpath={.spec.ports[0].nodePort}")
		f.eventually(5*time.Second, func() error { return f.ask(pod.Name, "http://"+strings.Fields(machine)[0]+":"+port+"/") })
		f.kubectl("delete", "service", name)
	}
}

// names checks the host name of a host network pod on each additional node.
func (f *multiNode) names() {
	for _, node := range []string{f.first + "-2", f.first + "-3"} {
		f.apply(`
apiVersion: v1
kind: Pod
metadata: {name: on-` + node + `}
spec:
  nodeName: ` + node + `
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: hyperkube, imagePullPolicy: Never, args: [hello, "--address=:8081", "--message=Name"]}]
`)
		f.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "pod/on-"+node)
		address := f.kubectl("get", "pod", "on-"+node, "-o", "jsonpath={.status.podIP}")
		f.eventually(5*time.Second, func() error { return f.fetch("http://"+address+":8081/", "from pod "+node+",") })
		f.kubectl("delete", "pod", "on-"+node)
	}
}

func (f *multiNode) policies() {
	f.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`)
	web, app := f.pods("app=web"), f.pods("app=app")
	refused := func(from, to string) {
		f.t.Helper()
		f.eventually(5*time.Second, func() error {
			if f.ask(from, "http://"+to+":8080/") == nil {
				return fmt.Errorf("%s can still reach %s", from, to)
			}
			return nil
		})
	}
	for _, to := range web {
		refused(app[0].Name, to.Status.PodIP)
		f.eventually(5*time.Second, func() error { return f.ask(to.Name, "http://"+to.Status.PodIP+":8080/") })
	}
	f.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: app}}}], ports: [{port: http}]}]
`)
	for _, to := range web {
		f.eventually(5*time.Second, func() error { return f.ask(app[0].Name, "http://"+to.Status.PodIP+":8080/") })
	}
	refused(web[0].Name, web[1].Status.PodIP)
	// An egress policy, and an ipBlock with an exception.
	f.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out}
spec:
  podSelector: {matchLabels: {app: app}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [` + web[0].Status.PodIP + `/32]}}]}]
`)
	refused(app[0].Name, web[0].Status.PodIP)
	f.eventually(5*time.Second, func() error { return f.ask(app[0].Name, "http://"+web[1].Status.PodIP+":8080/") })
	f.kubectl("delete", "networkpolicy", "--all")
	f.reach()
}

// rules returns the iptables rules of the machine and of the network namespaces of additional
// nodes.
func (f *multiNode) rules() host {
	f.t.Helper()
	h := host{}
	for where, in := range f.namespaces() {
		for _, family := range []string{"iptables", "ip6tables"} {
			for line := range strings.Lines(f.sh(in + family + "-save")) {
				switch line = counters.ReplaceAllString(strings.TrimSpace(line), ""); {
				// the kernel's chains are created on demand
				case line == "", line[0] == '#', strings.Contains(line, " ACCEPT "):
				default:
					h[where+" "+family] = append(h[where+" "+family], line)
				}
			}
		}
	}
	return h
}

// namespaces returns the command prefixes that enter the network namespaces of the machine and of
// its additional nodes.
func (f *multiNode) namespaces() map[string]string {
	return map[string]string{
		"machine": "", "node 2": "nsenter --net=" + filepath.Join(f.root, "run/hyperkube/nodes/1/netns") + " ",
		"node 3": "nsenter --net=" + filepath.Join(f.root, "run/hyperkube/nodes/2/netns") + " ",
	}
}

// flushed: deleted rules are restored, those of Services, pods, host ports, policies and nodes.
func (f *multiNode) flushed() {
	f.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: some}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ported}
spec:
  nodeName: ` + f.first + `-2
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: hyperkube, imagePullPolicy: Never, args: [hello], ports: [{containerPort: 8080, hostPort: 8089}]}]
`)
	f.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "pod/ported")
	f.reach() // the policies are in force
	before := f.rules()
	for where, rules := range before {
		if text := strings.Join(rules, "\n"); strings.HasSuffix(where, " iptables") && (!strings.Contains(text, "KUBE-SVC-") || !strings.Contains(text, "HK-POLICY") ||
			strings.Contains(text, "HK-NODES") != strings.HasPrefix(where, "machine")) {
			f.t.Errorf("%s has missing rules:\n%s", where, text)
		}
	}
	for _, flush := range []string{"iptables -F", "iptables -t nat -F", "for t in filter nat mangle; do iptables -t $t -F; iptables -t $t -X; done"} {
		for _, in := range f.namespaces() {
			f.sh(in + "sh -c '" + flush + " 2>/dev/null; true'")
		}
		f.eventually(time.Minute, func() error {
			if diff := before.diff(f.rules()); diff != "" {
				return fmt.Errorf("after %s:\n%s", flush, diff)
			}
			return nil
		})
	}
	f.reach()
	f.eventually(5*time.Second, func() error {
		return f.fetch("http://" + f.kubectl("get", "pod", "ported", "-o", "jsonpath={.status.hostIP}") + ":8089/")
	})
	f.kubectl("delete", "pod/ported", "networkpolicy/some")
}

// ready returns the Ready condition of each node.
func (f *multiNode) ready() map[string]corev1.ConditionStatus {
	var list corev1.NodeList
	f.read(&list, "nodes")
	out := map[string]corev1.ConditionStatus{}
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				out[n.Name] = c.Status
			}
		}
	}
	return out
}

// loss disconnects one node, and kills all processes but the pods of another.
func (f *multiNode) loss() {
	if out, err := f.command("ip", "link", "set", "hkn1", "down").CombinedOutput(); err != nil {
		f.t.Fatalf("disconnecting a node: %v %s", err, out)
	}
	for _, name := range []string{"hyperkube", "runtime"} {
		data, err := os.ReadFile(filepath.Join(f.root, "run/hyperkube/nodes/2", name+".pid"))
		if err != nil {
			f.t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			f.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			f.t.Fatal(err)
		}
	}
	cut, dead := f.first+"-2", f.first+"-3"
	f.eventually(30*time.Second, func() error {
		if r := f.ready(); r[f.first] != corev1.ConditionTrue || r[cut] != corev1.ConditionUnknown || r[dead] != corev1.ConditionUnknown {
			return fmt.Errorf("nodes: %v", r)
		}
		return nil
	})
	// A user declares that the dead node is shut down.
	f.kubectl("taint", "node", dead, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	// Pods that tolerate it only for a while are evicted and recreated elsewhere, and Services are
	// updated. Nodes are tainted one at a time, every 10 s.
	f.eventually(30*time.Second, func() error {
		running := 0
		for _, p := range f.pods("app=app") {
			if p.Spec.NodeName == f.first && p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != 3 {
			return fmt.Errorf("%d of 3 pods are on the remaining node", running)
		}
		var slices discoveryv1.EndpointSliceList
		f.read(&slices, "endpointslices", "-l", "kubernetes.io/service-name in (app,web)")
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if *e.NodeName != f.first && *e.Conditions.Ready {
					return fmt.Errorf("an endpoint of lost node %s is ready", *e.NodeName)
				}
			}
		}
		return nil
	})
	f.eventually(5*time.Second, func() error {
		for range 5 {
			if err := f.fetch("http://127.0.0.1:30080/"); err != nil {
				return fmt.Errorf("the service while nodes are lost: %w", err)
			}
		}
		return nil
	})
	f.eventually(30*time.Second, func() error {
		for _, p := range append(f.pods("app=app"), f.pods("app=web")...) {
			if p.Spec.NodeName == dead && p.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s of the out-of-service node still exists", p.Name)
			}
		}
		return nil
	})

	if out, err := f.command("ip", "link", "set", "hkn1", "up").CombinedOutput(); err != nil {
		f.t.Fatalf("joining the node again: %v %s", err, out)
	}
	f.kubectl("taint", "node", dead, "node.kubernetes.io/out-of-service-")
	f.hyperkube("up", "--root", f.root)
	f.eventually(30*time.Second, func() error {
		for name, r := range f.ready() {
			if r != corev1.ConditionTrue {
				return fmt.Errorf("node %s: %s", name, r)
			}
		}
		for _, p := range append(f.pods("app=app"), f.pods("app=web")...) {
			if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s on %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase)
			}
		}
		return nil
	})
	f.kubectl("rollout", "status", "ds/web", "--timeout=180s")
	f.reach()
}

func (f *multiNode) removal() {
	f.hyperkube("up", "--nodes=2", "--root", f.root)
	if r := f.ready(); len(r) != 2 || r[f.first+"-3"] != "" {
		f.t.Errorf("nodes: %v", r)
	}
	f.hyperkube("stop", "--root", f.root)
	f.hyperkube("up", "--root", f.root)
	if r := f.ready(); len(r) != 2 {
		f.t.Errorf("nodes after a restart: %v", r)
	}
	f.reach()
	out := f.hyperkube("status", "--root", f.root)
	if !strings.Contains(out, f.first+"-2 Ready") {
		f.t.Errorf("status:\n%s", out)
	}
	// After the last additional node is removed, the link between nodes is removed as well.
	f.hyperkube("up", "--nodes=1", "--root", f.root)
	if r := f.ready(); len(r) != 1 {
		f.t.Errorf("nodes: %v", r)
	}
	if left := f.network(); strings.Contains(left, "hk-nodes") || strings.Contains(left, "HK-NODES") {
		f.t.Errorf("remains of the nodes' network:\n%s", left)
	}
	f.reach()
}
