package controlplane

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

// exitedRuntime is a container runtime with one static pod, whose container has exited.
type exitedRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	log string
}

func (exitedRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p", Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}}, nil
}

func (exitedRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: "c", PodSandboxId: "p", State: runtimeapi.ContainerState_CONTAINER_EXITED, Metadata: &runtimeapi.ContainerMetadata{Name: "etcd"},
		Labels: map[string]string{cri.LabelPodName: "etcd-m", cri.LabelContainerName: "etcd"},
	}}}, nil
}

func (r exitedRuntime) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{ExitCode: 1, LogPath: r.log}}, nil
}

// TestWaitReportsStaticPods: while init waits for an API server that does not start, it reports the
// static pod that exited and the reason.
func TestWaitReportsStaticPods(t *testing.T) {
	m := newTestNode(t)
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
	runtimeapi.RegisterRuntimeServiceServer(server, exitedRuntime{log: log})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output := ""
	m.steps = progress.New(func(s progress.Step) {
		output = s.Text
		cancel()
	})
	clients, err := client.New(client.Config{REST: &rest.Config{Host: "https://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.setup().waitForAPIServer(ctx, clients); err == nil || !strings.Contains(output, "etcd has exited 1 times, last exit code 1: the disk is full") {
		t.Errorf("%v; output %q", err, output)
	}
}
