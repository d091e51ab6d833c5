package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/layout"
)

// someRuntime has pods and containers, which have all ended with code 3 and a log.
type someRuntime struct {
	runtimeapi.RuntimeServiceClient

	pods       []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	log        string
}

func (r *someRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	if r.pods == nil {
		return nil, errors.New("nobody listens")
	}
	return &runtimeapi.ListPodSandboxResponse{Items: r.pods}, nil
}

func (r *someRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.containers}, nil
}

func (r *someRuntime) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{ExitCode: 3, LogPath: r.log}}, nil
}

// TestDescribeStaticPods: who waits for a node is told which static pod does not run, and why.
func TestDescribeStaticPods(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(log, []byte("2026-01-01T00:00:00Z stderr F first\n2026-01-01T00:00:01Z stderr F no space left on device\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	container := func(pod, name string, attempt uint32, state runtimeapi.ContainerState) *runtimeapi.Container {
		return &runtimeapi.Container{
			Id: name, PodSandboxId: pod, State: state, CreatedAt: int64(attempt), Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
			Labels: map[string]string{cri.LabelPodName: pod, cri.LabelContainerName: name},
		}
	}
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	pods := []*runtimeapi.PodSandbox{
		{Id: "etcd-m", Annotations: map[string]string{"kubernetes.io/config.source": "file"}},
		{Id: "web", Annotations: map[string]string{"kubernetes.io/config.source": "api"}},
	}
	for _, c := range []struct {
		name    string
		runtime someRuntime
		want    string
	}{
		{"no runtime", someRuntime{}, ""},
		{"nothing yet", someRuntime{pods: pods}, ""},
		{"it ends again and again", someRuntime{pods: pods, log: log, containers: []*runtimeapi.Container{
			container("etcd-m", "etcd", 2, exited), container("etcd-m", "etcd", 1, exited), container("web", "web", 5, exited),
		}}, "etcd has ended 3 times, now with code 3: no space left on device"},
		{"without a log", someRuntime{pods: pods, log: log + ".none", containers: []*runtimeapi.Container{container("etcd-m", "etcd", 0, exited)}},
			"etcd has ended 1 times, now with code 3"},
		{"it runs again", someRuntime{pods: pods, log: log, containers: []*runtimeapi.Container{
			container("etcd-m", "etcd", 1, exited), container("etcd-m", "etcd", 2, running),
		}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := describeStaticPods(t.Context(), &c.runtime)
			if got != c.want || (err != nil) != (c.runtime.pods == nil) {
				t.Errorf("said %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestLastWords: what was panicked with says more than the stack below it.
func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "2026-01-01T00:00:00Z stderr F first\n2026-01-01T00:00:01Z stderr F last\n": "last",
		"2026-01-01T00:00:00Z stderr F panic: out of cheese\n2026-01-01T00:00:01Z stderr F \n2026-01-01T00:00:02Z stderr F goroutine 1 [running]:\n": "panic: out of cheese",
		"2026-01-01T00:00:00Z stderr F fatal error: fault\n2026-01-01T00:00:01Z stderr F \n2026-01-01T00:00:02Z stderr F goroutine 1 [running]:\n":   "fatal error: fault",
	} {
		log := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(log); got != want {
			t.Errorf("last words of %q are %q", text, got)
		}
	}
}

func TestFailedChecks(t *testing.T) {
	if got := failedChecks([]byte("[+]ping ok\n[-]etcd failed: reason withheld\n[-]informer-sync failed\nreadyz check failed\n")); got != "the API server is not ready for want of etcd, informer-sync" {
		t.Error(got)
	}
	if got := failedChecks([]byte("ok")); got != "" {
		t.Error(got)
	}
	for body, want := range map[string]string{"it is just starting\n": "it is just starting", "": "", `{"kind":"Status"}`: "", "two\nlines": ""} {
		if got := short([]byte(body)); got != want {
			t.Errorf("%q: %q", body, got)
		}
	}
}

// TestDescribeManifests: what no pod can be made of is told with its file, whatever the
// runtime says.
func TestDescribeManifests(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.StaticPods(), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.StaticPods(), "kube-apiserver.yaml")
	if err := os.WriteFile(file, []byte("kind: Pod\n spec: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := StaticPods(t.Context(), l); !strings.HasPrefix(got, "the manifest "+file+" is not run: reading the manifest: yaml: line 2: ") {
		t.Errorf("said %q", got)
	}
}
