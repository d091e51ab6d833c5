package masters

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/client"
)

// endedRuntime has one static pod, whose container has ended.
type endedRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	log string
}

func (endedRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p", Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}}, nil
}

func (endedRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: "c", PodSandboxId: "p", State: runtimeapi.ContainerState_CONTAINER_EXITED, Metadata: &runtimeapi.ContainerMetadata{Name: "etcd"},
		Labels: map[string]string{cri.LabelPodName: "etcd-m", cri.LabelContainerName: "etcd"},
	}}}, nil
}

func (r endedRuntime) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{ExitCode: 1, LogPath: r.log}}, nil
}

// TestWaitTellsOfStaticPods: who waits for an API server that does not come, whose node runs
// already, is told which static pod has ended, and why.
func TestWaitTellsOfStaticPods(t *testing.T) {
	m := testMaster(t)
	m.settings.Waits.ControlPlane = time.Minute
	log := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(log, []byte("2026-01-01T00:00:00Z stderr F the disk is full\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(m.layout.RuntimeSocket()), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", m.layout.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, endedRuntime{log: log})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := ""
	m.steps = progress.New(func(s progress.Step) {
		said = s.Text
		cancel()
	})
	clients, err := client.New(client.Config{REST: &rest.Config{Host: "https://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.waitAnswer(ctx, clients); err == nil || !strings.Contains(said, "etcd has ended 1 times, now with code 1: the disk is full") {
		t.Errorf("%v; it says %q", err, said)
	}
}
