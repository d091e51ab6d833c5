package cri

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestBounds checks that the timeout of each call is that of upstream's kubelet.
func TestBounds(t *testing.T) {
	const m = time.Minute
	for _, c := range []struct {
		method string
		req    any
		want   time.Duration
	}{
		{runtimeapi.RuntimeService_Status_FullMethodName, &runtimeapi.StatusRequest{}, 2 * m},
		{runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, &runtimeapi.RunPodSandboxRequest{}, 4 * m},
		{runtimeapi.RuntimeService_StopContainer_FullMethodName, &runtimeapi.StopContainerRequest{Timeout: 30}, 2*m + 30*time.Second},
		{runtimeapi.RuntimeService_ExecSync_FullMethodName, &runtimeapi.ExecSyncRequest{Timeout: 1}, 2*m + time.Second},
		{runtimeapi.RuntimeService_ExecSync_FullMethodName, &runtimeapi.ExecSyncRequest{}, 0},
		{runtimeapi.RuntimeService_CheckpointContainer_FullMethodName, &runtimeapi.CheckpointContainerRequest{Timeout: 1}, 2 * m},
		{runtimeapi.RuntimeService_CheckpointContainer_FullMethodName, &runtimeapi.CheckpointContainerRequest{Timeout: 300}, 5 * m},
		{runtimeapi.ImageService_ListImages_FullMethodName, &runtimeapi.ListImagesRequest{}, 2 * m},
		{runtimeapi.ImageService_PullImage_FullMethodName, &runtimeapi.PullImageRequest{}, 0},
		{"/of.Another/Service", nil, 0},
	} {
		if got := deadlines(2*m).timeout(c.method, c.req); got != c.want {
			t.Errorf("%s %v: timeout %v, want %v", c.method, c.req, got, c.want)
		}
		if got := deadlines(0).timeout(c.method, c.req); got != 0 {
			t.Errorf("%s %v: timeout %v without a limit", c.method, c.req, got)
		}
	}
}

// hung is a runtime that does not respond.
type hung struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (hung) ListContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestHungRuntime checks that a call of a hung runtime fails.
func TestHungRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, hung{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := Dial(socket, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.Runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}, WaitForReady())
	if status.Code(err) != codes.DeadlineExceeded || !IsTimeout(err) {
		t.Errorf("%v", err)
	}
}
