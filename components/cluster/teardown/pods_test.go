package teardown

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// brokenRuntime has three pods with a running container each and a completed pod. It cannot stop those with the
// ID "bad".
type brokenRuntime struct {
	runtimeapi.RuntimeServiceClient

	mu      sync.Mutex // guards removed
	removed []string
}

var errStuck = errors.New("stuck")

func (*brokenRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, id := range []string{"bad", "one", "two", "completed"} {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: id}})
	}
	return out, nil
}

func (*brokenRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	out := &runtimeapi.ListContainersResponse{}
	for _, id := range []string{"bad", "one", "two"} {
		out.Containers = append(out.Containers, &runtimeapi.Container{Id: id, PodSandboxId: id})
	}
	return out, nil
}

func (*brokenRuntime) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	if r.ContainerId == "bad" {
		return nil, errStuck
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (*brokenRuntime) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.StopPodSandboxResponse, error) {
	if r.PodSandboxId == "bad" {
		return nil, errStuck
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (b *brokenRuntime) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.RemovePodSandboxResponse, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("removal without a timeout")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed = append(b.removed, r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, ctx.Err()
}

// TestRemovePods checks that a pod that cannot be stopped affects neither other pods nor the call
// of last.
func TestRemovePods(t *testing.T) {
	runtime, left := &brokenRuntime{}, false
	running, err := removePods(context.Background(), runtime, func() { left = true })
	if !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "stopping container bad") || !strings.Contains(err.Error(), "stopping pod default/bad") {
		t.Errorf("error %v", err)
	}
	if running != 3 {
		t.Errorf("%d pods had running containers, want 3", running)
	}
	slices.Sort(runtime.removed)
	if !slices.Equal(runtime.removed, []string{"completed", "one", "two"}) || !left {
		t.Errorf("removed %v; last called: %v", runtime.removed, left)
	}
}
