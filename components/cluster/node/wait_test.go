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
	"hyperkube/internal/host/layout"
)

// fakeRuntime returns pods and containers. Exited containers have exit code 3 and a log.
type fakeRuntime struct {
	runtimeapi.RuntimeServiceClient

	pods       []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	log        string
}

func (r *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	if r.pods == nil {
		return nil, errors.New("connection refused")
	}
	return &runtimeapi.ListPodSandboxResponse{Items: r.pods}, nil
}

func (r *fakeRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.containers}, nil
}

func (r *fakeRuntime) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{ExitCode: 3, LogPath: r.log}}, nil
}

// TestDescribeExited checks the description of static pods that have exited.
func TestDescribeExited(t *testing.T) {
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
		runtime fakeRuntime
		want    string
	}{
		{"no runtime", fakeRuntime{}, ""},
		{"no containers", fakeRuntime{pods: pods}, ""},
		{"exits repeatedly", fakeRuntime{pods: pods, log: log, containers: []*runtimeapi.Container{
			container("etcd-m", "etcd", 2, exited), container("etcd-m", "etcd", 1, exited), container("web", "web", 5, exited),
		}}, "etcd has exited 3 times, last exit code 3: no space left on device"},
		{"without a log", fakeRuntime{pods: pods, log: log + ".none", containers: []*runtimeapi.Container{container("etcd-m", "etcd", 0, exited)}},
			"etcd has exited 1 times, last exit code 3"},
		{"running again", fakeRuntime{pods: pods, log: log, containers: []*runtimeapi.Container{
			container("etcd-m", "etcd", 1, exited), container("etcd-m", "etcd", 2, running),
		}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := describeExited(t.Context(), &c.runtime)
			if got != c.want || (err != nil) != (c.runtime.pods == nil) {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestLastLogLine checks that the line of a panic is returned instead of the stack trace below it.
func TestLastLogLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "2026-01-01T00:00:00Z stderr F first\n2026-01-01T00:00:01Z stderr F last\n": "last",
		"2026-01-01T00:00:00Z stderr F panic: out of cheese\n2026-01-01T00:00:01Z stderr F \n2026-01-01T00:00:02Z stderr F goroutine 1 [running]:\n": "panic: out of cheese",
		"2026-01-01T00:00:00Z stderr F fatal error: fault\n2026-01-01T00:00:01Z stderr F \n2026-01-01T00:00:02Z stderr F goroutine 1 [running]:\n":   "fatal error: fault",
	} {
		log := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastLogLine(log); got != want {
			t.Errorf("last log line of %q is %q", text, got)
		}
	}
}

func TestFailedChecks(t *testing.T) {
	if got := failedChecks([]byte("[+]ping ok\n[-]etcd failed: reason withheld\n[-]informer-sync failed\nreadyz check failed\n")); got != "the API server is not ready, failed checks: etcd, informer-sync" {
		t.Error(got)
	}
	if got := failedChecks([]byte("ok")); got != "" {
		t.Error(got)
	}
	for body, want := range map[string]string{"it is just starting\n": "it is just starting", "": "", `{"kind":"Status"}`: "", "two\nlines": ""} {
		if got := shortLine([]byte(body)); got != want {
			t.Errorf("%q: %q", body, got)
		}
	}
}

// TestDescribeManifests checks that an invalid manifest is reported with its file name.
func TestDescribeManifests(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.StaticPods(), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.StaticPods(), "kube-apiserver.yaml")
	if err := os.WriteFile(file, []byte("kind: Pod\n spec: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := StaticPodProblems(t.Context(), l); !strings.HasPrefix(got, "manifest "+file+" is not run: decoding manifest: yaml: line 2: ") {
		t.Errorf("got %q", got)
	}
}
