package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/internal/client"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testport"
	"hyperkube/internal/testing/testwait"
)

// start runs a kubelet with a fake runtime and a fake API server.
func start(t *testing.T, change func(*config.Config, *Dependencies)) (*Kubelet, *fake.Clientset, *crifake.Runtime) {
	t.Helper()
	return startWith(t, nil, change)
}

// startWith is start with a runtime that prepare has configured.
func startWith(t *testing.T, prepare func(*crifake.Runtime), change func(*config.Config, *Dependencies)) (*Kubelet, *fake.Clientset, *crifake.Runtime) {
	t.Helper()
	kube := fake.NewClientset()
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	cfg := config.Config{
		NodeName: "node", Layout: layout.Under(t.TempDir()),
		Node: config.Node{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Cgroups: config.Cgroups{Off: true},
		Server: config.Server{Address: "127.0.0.1", Port: testport.Port(t), HealthzPort: testport.Port(t)},
		Access: config.Access{Anonymous: true},
	}
	deps := Dependencies{Clients: &client.Clients{Kube: kube}, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg, &deps)
	}
	k, err := connect(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	rt := crifake.New("busybox:1")
	if prepare != nil {
		prepare(rt)
	}
	k.cri.Runtime, k.cri.Images = rt, rt
	if err := k.compose(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// The kubelet may have mounted its root directory on itself as a shared mount.
		if err := unix.Unmount(cfg.Layout.Kubelet, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
			t.Error(err)
		}
	})
	select {
	case <-k.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("the node never became ready")
	}
	return k, kube, rt
}

// TestReadOnlyPort checks that the read-only port serves pods and metrics without authentication,
// and nothing else.
func TestReadOnlyPort(t *testing.T) {
	port := testport.Port(t)
	start(t, func(c *config.Config, _ *Dependencies) { c.Server.ReadOnlyPort = port })
	answers := func(path string) int {
		t.Helper()
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path)) //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	// The node may be ready before the runtime's event stream is open.
	testwait.Until(t, "the kubelet to be healthy", func() bool { return answers("/healthz") == 200 })
	for path, want := range map[string]int{
		"/pods": 200, "/metrics": 200, "/configz": 404, "/runningpods": 404, "/exec/ns/pod/c": 404, "/containerLogs/ns/pod/c": 404,
	} {
		if got := answers(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

func TestNodeAndPod(t *testing.T) {
	k, kube, rt := start(t, nil)
	ctx := context.Background()
	node, err := kube.CoreV1().Nodes().Get(ctx, "node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		got[c.Type] = c.Status
	}
	if got[v1.NodeReady] != v1.ConditionTrue || got[v1.NodeMemoryPressure] != v1.ConditionFalse || node.Labels["kubernetes.io/hostname"] != "node" ||
		node.Status.Capacity.Cpu().IsZero() || node.Status.Addresses[0].Address != "192.0.2.1" {
		t.Errorf("node: %+v", node)
	}
	testwait.Until(t, "the lease", func() bool {
		l, err := kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, "node", metav1.GetOptions{})
		return err == nil && *l.Spec.HolderIdentity == "node"
	})

	node = node.DeepCopy()
	node.Spec.PodCIDR, node.Spec.PodCIDRs, node.ResourceVersion = "10.244.7.0/24", []string{"10.244.7.0/24"}, "90"
	if _, err := kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the runtime to know the pod CIDRs", func() bool {
		return strings.Contains(strings.Join(rt.Calls(), "\n"), "UpdateRuntimeConfig 10.244.7.0/24")
	})

	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "1", Generation: 1},
		Spec:       v1.PodSpec{NodeName: "node", Containers: []v1.Container{{Name: "main", Image: "busybox:1"}}},
	}
	if _, err := kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the pod to run", func() bool {
		p, err := kube.CoreV1().Pods("default").Get(ctx, "a", metav1.GetOptions{})
		return err == nil && p.Status.Phase == v1.PodRunning
	})

	log := filepath.Join(k.logs().Dir(pod), "main", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer web.CloseIdleConnections()
	get := func(path string) string {
		resp, err := web.Get(fmt.Sprintf("https://127.0.0.1:%d%s", k.cfg.Server.Port, path))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if got := get("/containerLogs/default/a/main"); got != "one\ntwo\n" {
		t.Errorf("log: %q", got)
	}
	if got := get("/containerLogs/default/a/main?tailLines=1"); got != "two\n" {
		t.Errorf("log's tail: %q", got)
	}
	if got := get("/containerLogs/default/b/main"); !strings.Contains(got, "not found") {
		t.Errorf("log of unknown pod: %q", got)
	}
	if got := get("/pods"); !strings.Contains(got, `"podIP":"10.0.0.1"`) {
		t.Errorf("pods: %s", got)
	}
	for path, want := range map[string]string{
		"/checkpoint/default/b/main":           "pod does not exist\n",
		"/checkpoint/default/a/side":           "container side does not exist\n",
		"/checkpoint/default/a/main?timeout=x": "cannot parse value of timeout parameter\n",
		"/checkpoint/default/a/main":           `{"items":["` + k.cfg.Layout.Kubelet + "/checkpoints/checkpoint-a_default-main-",
	} {
		resp, err := web.Post(fmt.Sprintf("https://127.0.0.1:%d%s", k.cfg.Server.Port, path), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.HasPrefix(string(raw), want) {
			t.Errorf("%s: %q, %v, want %q", path, raw, err, want)
		}
	}
	if got := get("/healthz"); got != "ok" {
		t.Errorf("health: %s", got)
	}
	if got := get("/metrics"); !strings.Contains(got, "kubelet_running_pods 1") {
		t.Errorf("metrics: %s", got)
	}
}

func TestStaticPod(t *testing.T) {
	dir := t.TempDir()
	manifest := func(image string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: s, namespace: default}\nspec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: \"" + image + "\"}]}\n"
		if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	manifest("busybox:1")
	_, kube, rt := start(t, func(c *config.Config, _ *Dependencies) { c.StaticPods.Dir = dir })
	// The fake API server sets no UIDs, but the kubelet distinguishes pods by UID.
	running := func(image string) func() bool {
		return func() bool {
			p, err := kube.CoreV1().Pods("default").Get(context.Background(), "s-node", metav1.GetOptions{})
			return err == nil && p.Annotations[v1.MirrorPodAnnotationKey] != "" && p.Status.Phase == v1.PodRunning &&
				p.Spec.Containers[0].Image == image && len(p.OwnerReferences) == 1
		}
	}
	testwait.Until(t, "the mirror pod to report the static pod as running", running("busybox:1"))
	manifest("busybox:2")
	testwait.Until(t, "the mirror pod to match the changed manifest", running("busybox:2"))
	if err := os.Remove(filepath.Join(dir, "s.yaml")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the deletion of the mirror pod", func() bool {
		_, err := kube.CoreV1().Pods("default").Get(context.Background(), "s-node", metav1.GetOptions{})
		return err != nil
	})
	testwait.Until(t, "all containers to be removed", func() bool { s, c := rt.Count(); return s == 0 && c == 0 })
}
