package e2e

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"hyperkube/internal/testing/testimage"
	"hyperkube/internal/testing/testlogind"
)

// far is a device plugin with a device on a NUMA node that does not exist.
type far struct{ things }

func (far) ListAndWatch(_ *deviceapi.Empty, stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	list := []*deviceapi.Device{{ID: "far", Health: deviceapi.Healthy, Topology: &deviceapi.TopologyInfo{Nodes: []*deviceapi.NUMANode{{ID: 63}}}}}
	if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// nodeConfig is the kubelet configuration of TestNode.
const nodeConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
kubeReserved: {cpu: 500m, memory: 200Mi}
evictionHard: {memory.available: 100Mi}
podPidsLimit: 100
reservedMemory: [{numaNode: 0, limits: {memory: 300Mi}}]
shutdownGracePeriod: 10s
shutdownGracePeriodCriticalPods: 5s
staticPodURL: http://127.0.0.1:%d/pods
httpCheckFrequency: 1s
featureGates: {GracefulNodeShutdown: true, CPUManagerPolicyOptions: true}
`

// TestNode tests a kubelet that controls its machine: NUMA alignment of CPUs, memory and huge
// pages, credential providers, static pods from a URL, and graceful node shutdown.
func TestNode(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	n := &aloneNode{alone: a, root: root, registry: "127.0.0.1:5000"}
	n.hugePages(4)
	n.serve()
	config := filepath.Join(a.dir, "kubelet.yaml")
	n.write(config, fmt.Sprintf(nodeConfig, n.pods), 0o600)
	n.provider()
	bus, err := testlogind.Listen(filepath.Join(a.dir, "bus"), time.Minute, func() time.Duration { return time.Minute })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bus.Close)
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	up := a.command(a.binary, "up", "--root", root, "--kubelet-config", config,
		"--image-credential-provider-config", filepath.Join(a.dir, "providers.yaml"), "--image-credential-provider-bin-dir", filepath.Join(a.dir, "bin"))
	up.Env = append(up.Env, "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+filepath.Join(a.dir, "bus"))
	if out, err := up.CombinedOutput(); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "events"}} {
				out, _ := a.command(a.binary, append([]string{"kubectl"}, args...)...).CombinedOutput()
				t.Logf("%v\n%s", args, out)
			}
			if log, err := os.ReadFile(filepath.Join(root, "var/lib/hyperkube/logs/hyperkube.log")); err == nil {
				t.Logf("%s", log[max(0, len(log)-2000):])
			}
		}
	})
	n.name = strings.TrimSpace(n.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	n.ownResources()
	n.bounded()
	n.farDevice()
	n.measures()
	n.kubectl("wait", "--timeout=180s", "--for=jsonpath={.status.phase}=Running", "pod/web-"+n.name)
	n.shutsDown(bus)
}

// aloneNode is a cluster with one node in a network namespace.
type aloneNode struct {
	*alone
	root, name, registry string
	pods                 int // port of the static pod server
}

func (n *aloneNode) write(path, text string, mode os.FileMode) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		n.t.Fatal(err)
	}
}

// hugePages allocates some huge pages on the machine for the duration of the test.
func (n *aloneNode) hugePages(count int) {
	n.t.Helper()
	restore, err := current.hugePages(count)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(restore)
}

// listen listens in the namespace.
func (n *aloneNode) listen(address string) net.Listener {
	n.t.Helper()
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result)
	go func() {
		// The thread exits with the goroutine, because it stays in the namespace.
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.holder))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		var l net.Listener
		if err == nil {
			l, err = net.Listen("tcp", address)
		}
		done <- result{l, err}
	}()
	r := <-done
	if r.err != nil {
		n.t.Fatal(r.err)
	}
	return r.l
}

// serve runs a registry that requires a password, and a server of static pods, in the namespace.
func (n *aloneNode) serve() {
	n.t.Helper()
	image, err := testimage.Busybox()
	if err != nil {
		n.t.Fatal(err)
	}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(inner)
	defer open.Close()
	for _, repository := range []string{"open/busybox", "team/busybox"} {
		tag, err := name.NewTag(strings.TrimPrefix(open.URL, "http://")+"/"+repository+":1", name.Insecure)
		if err != nil {
			n.t.Fatal(err)
		}
		if err := remote.Write(tag, image); err != nil {
			n.t.Fatal(err)
		}
	}
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if password != "right" && !strings.HasPrefix(r.URL.Path, "/v2/open/") {
			w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	static := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web"},"spec":{"terminationGracePeriodSeconds":1,"containers":[
			{"name":"c","image":"%s/open/busybox:1","imagePullPolicy":"IfNotPresent","command":["sleep","1000"]}]}}`, n.registry)
	})
	pods := n.listen("127.0.0.1:0")
	n.pods = pods.Addr().(*net.TCPAddr).Port
	for l, h := range map[net.Listener]http.Handler{n.listen(n.registry): guarded, pods: static} {
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }()
		n.t.Cleanup(func() { _ = server.Close() })
	}
}

// provider installs a credential provider that returns the password only for one service account.
func (n *aloneNode) provider() {
	n.t.Helper()
	n.write(filepath.Join(n.dir, "bin", "keeper"), `#!/bin/sh
in=$(cat)
password=wrong
case "$in" in *'"team":"yes"'*) password=right;; esac
printf '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","auth":{"%s":{"username":"u","password":"%s"}}}' "$1" $password
`, 0o755)
	n.write(filepath.Join(n.dir, "providers.yaml"), `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: keeper
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["`+n.registry+`"]
  defaultCacheDuration: 1m
  args: ["`+n.registry+`"]
  tokenAttributes:
    serviceAccountTokenAudience: keeper
    cacheType: ServiceAccount
    requireServiceAccount: true
    optionalServiceAccountAnnotationKeys: [team]
`, 0o600)
}

// bounded: pods try to use all processes and all memory. Each reaches its limit, and existing pods
// keep running.
func (n *aloneNode) bounded() {
	n.t.Helper()
	for name, does := range map[string]string{
		"bomb": `command: [sh, -c, "for i in $(seq 300); do sleep 1000 & done; echo all of them"]`,
		"hog": `command: [tail, /dev/zero]
    resources: {limits: {memory: 32Mi}}`,
	} {
		n.apply(`apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  restartPolicy: Never
  serviceAccountName: team
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: ` + n.registry + `/team/busybox:1
    imagePullPolicy: IfNotPresent
    ` + does + `
`)
	}
	n.kubectl("wait", "--timeout=180s", "--for=jsonpath={.status.phase}=Failed", "pod/bomb", "pod/hog")
	if out := n.kubectl("logs", "bomb"); !strings.Contains(out, "Resource temporarily unavailable") {
		n.t.Errorf("a pod that starts 300 processes printed %q", out)
	}
	const how = "jsonpath={.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}"
	if out := n.kubectl("get", "pod", "hog", "-o", how); out != "OOMKilled 137" {
		n.t.Errorf("a pod that uses all memory terminated with %q", out)
	}
	if out := n.kubectl("exec", "own", "--", "echo", "here"); out != "here\n" {
		n.t.Errorf("an existing container printed %q", out)
	}
	n.kubectl("delete", "pod", "bomb", "hog", "--wait=false")
}

// ownResources runs a pod with exclusive CPUs, memory and huge pages. Only its service account may
// pull its image. It checks the resource assignments.
func (n *aloneNode) ownResources() {
	t := n.t
	t.Helper()
	// A node needs a permission to request tokens for an audience that no pod specifies.
	n.apply(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: keeper}
rules: [{verbs: [request-serviceaccounts-token-audience], apiGroups: [""], resources: [keeper]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: keeper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: keeper}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: team, annotations: {team: "yes"}}
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  serviceAccountName: team
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ` + n.registry + `/team/busybox:1
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap exit TERM; grep _allowed_list /proc/self/status; sleep 1000 & wait"]
    resources: {limits: {cpu: 1, memory: 64Mi, hugepages-2Mi: 4Mi}}
`)
	n.kubectl("wait", "--timeout=180s", "--for=condition=Ready", "pod/own")
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.kubeletDir(), "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := resourcesapi.NewPodResourcesListerClient(conn).Get(n.ctx, &resourcesapi.GetPodResourcesRequest{PodName: "own", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	c := resp.PodResources.Containers[0]
	if len(c.CpuIds) != 1 || len(c.Memory) != 2 || c.Memory[0].MemoryType != "hugepages-2Mi" || c.Memory[0].Size != 4<<20 || c.Memory[1].Topology.Nodes[0].ID != 0 {
		t.Errorf("the pod has %v", c)
	}
	want := fmt.Sprintf("Cpus_allowed_list:\t%d\nMems_allowed_list:\t0\n", c.CpuIds[0])
	if got := n.kubectl("logs", "own"); got != want {
		t.Errorf("the cgroup contains %q, want %q", got, want)
	}
	for name, what := range map[string]string{"cpu_manager_state": `"policyName":"static"`, "memory_manager_state": `"policyName":"Static"`} {
		if raw, err := os.ReadFile(filepath.Join(n.kubeletDir(), name)); err != nil || !strings.Contains(string(raw), what) {
			t.Errorf("%s: %s, %v", name, raw, err)
		}
	}
	podsAPI, err := grpc.NewClient("unix://"+filepath.Join(n.kubeletDir(), "pods-api", "pods-api.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer podsAPI.Close()
	// A pod with another service account must not use the image that is already on the node.
	n.watchedPods(podsAPI, n.pod("own"), func() {
		n.apply(`apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  containers: [{name: c, image: "` + n.registry + `/team/busybox:1", imagePullPolicy: IfNotPresent, command: [sleep, "1000"]}]
`)
	}, podsapi.EventType_ADDED, "stranger")
	n.until("the pod with another service account cannot use the image", func() error {
		p := n.pod("stranger")
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil {
			return errors.New("no event yet")
		}
		if w := p.Status.ContainerStatuses[0].State.Waiting; w.Reason != "ErrImagePull" && w.Reason != "ImagePullBackOff" {
			return fmt.Errorf("the pod waits because of %s", w.Reason)
		}
		return nil
	})
	n.kubectl("delete", "pod", "stranger", "--wait=false")
}

func (n *aloneNode) kubeletDir() string { return filepath.Join(n.root, "var/lib/kubelet") }

func (n *aloneNode) pod(name string) *corev1.Pod {
	n.t.Helper()
	p := &corev1.Pod{}
	n.read(p, "pod", name)
	return p
}

func (n *aloneNode) until(what string, ok func() error) {
	n.t.Helper()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-n.ctx.Done():
			n.t.Fatalf("timeout: %s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// farDevice: a pod whose device is not NUMA-aligned is rejected.
func (n *aloneNode) farDevice() {
	t := n.t
	t.Helper()
	dir := filepath.Join(n.kubeletDir(), "device-plugins")
	l, err := net.Listen("unix", filepath.Join(dir, "far.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	deviceapi.RegisterDevicePluginServer(server, far{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := deviceapi.NewRegistrationClient(conn).Register(n.ctx, &deviceapi.RegisterRequest{
		Version: deviceapi.Version, Endpoint: "far.sock", ResourceName: "e2e.example.com/far", Options: &deviceapi.DevicePluginOptions{},
	}); err != nil {
		t.Fatal(err)
	}
	n.apply(`apiVersion: v1
kind: Pod
metadata: {name: far}
spec:
  containers: [{name: c, image: none, resources: {limits: {e2e.example.com/far: 1}}}]
`)
	n.kubectl("wait", "--timeout=180s", "--for=jsonpath={.status.phase}=Failed", "pod/far")
	if s := n.pod("far").Status; s.Reason != "TopologyAffinityError" || s.Message != "Pod was rejected: Resources cannot be allocated with Topology locality" {
		t.Errorf("reason %q, message %q", s.Reason, s.Message)
	}
}

// measures checks the kubelet's metrics.
func (n *aloneNode) measures() {
	t := n.t
	t.Helper()
	for path, want := range map[string][]string{
		"metrics": {"kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}", "kubelet_topology_manager_admission_errors_total 1", "kubernetes_build_info{",
			"kubelet_pod_start_duration_seconds_count", `kubelet_pod_worker_duration_seconds_count{operation_type="create"}`, `kubelet_admission_rejections_total{reason="TopologyAffinityError"} 1`,
			`kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="pod"} 1`, `kubelet_device_plugin_registration_total{resource_name="e2e.example.com/far"} 1`,
			`operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/projected"}`, `volume_manager_total_volumes{plugin_name="kubernetes.io/projected",state="actual_state_of_world"}`,
			`kubelet_http_requests_total{`, `kubelet_working_pods{config="desired",lifecycle="sync",static=""}`, "kubelet_cpu_manager_exclusive_cpu_allocation_count", "rest_client_requests_total{", "kubelet_pod_start_sli_duration_seconds_bucket{"},
		"metrics/cadvisor": {"machine_cpu_physical_cores{boot_id=", `container_cpu_usage_seconds_total{container="c",cpu="total",id=`, `container_network_receive_bytes_total{container="POD"`, `container_memory_working_set_bytes{container="",id="/",image=""`},
		"metrics/resource": {`container_memory_working_set_bytes{container="c",namespace="default",pod="own"}`, "node_cpu_usage_seconds_total", "resource_scrape_error 0"},
		"metrics/probes":   {"prober_probe_total{"},
		"stats/summary":    {`"name": "kubelet"`, `"name": "runtime"`, `"name": "pods"`, `"workingSetBytes":`},
		"configz":          {`"topologyManagerPolicy":"single-numa-node"`, `"GracefulNodeShutdown":true`},
	} {
		got := n.kubectl("get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/"+path)
		for _, w := range want {
			if !strings.Contains(got, w) && !strings.Contains(got, strings.ReplaceAll(w, `": `, `":`)) {
				t.Errorf("%s has no %s", path, w)
			}
		}
	}
	if out := n.kubectl("get", "csinode", n.name, "-o", "jsonpath={.metadata.ownerReferences[0].kind}"); out != "Node" {
		t.Errorf("the CSINode belongs to %q", out)
	}
}

// shutsDown announces a shutdown of the machine, and cancels it.
func (n *aloneNode) shutsDown(bus *testlogind.Bus) {
	t := n.t
	t.Helper()
	ready := func(want corev1.ConditionStatus, message string) {
		t.Helper()
		n.until("the node's condition", func() error {
			node := &corev1.Node{}
			n.read(node, "node", n.name)
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == want && c.Message == message {
					return nil
				}
			}
			return fmt.Errorf("%+v", node.Status.Conditions)
		})
	}
	if err := bus.Shutdown(true); err != nil {
		t.Fatal(err)
	}
	select {
	case <-bus.Released():
	case <-time.After(minTimeout):
		t.Fatal("the shutdown delay is too long")
	}
	ready(corev1.ConditionFalse, "node is shutting down")
	s := n.pod("own").Status
	if s.Phase != corev1.PodFailed || s.Reason != "Terminated" || s.Message != "Pod was terminated in response to imminent node shutdown." {
		t.Errorf("phase %s, reason %q, message %q", s.Phase, s.Reason, s.Message)
	}
	n.apply(`apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeName: ` + n.name + `
  containers: [{name: c, image: none}]
`)
	n.kubectl("wait", "--timeout=180s", "--for=jsonpath={.status.reason}=NodeShutdown", "pod/late")
	if err := bus.Shutdown(false); err != nil {
		t.Fatal(err)
	}
	ready(corev1.ConditionTrue, "kubelet is posting ready status")
}
