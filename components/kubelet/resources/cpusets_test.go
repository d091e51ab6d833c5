package resources

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/cri"
)

// cpuRuntime runs two containers. Its first calls fail.
type cpuRuntime struct {
	mu    sync.Mutex
	fails int
	on    map[string]string
	moved chan struct{}
}

func (r *cpuRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails > 0 {
		r.fails--
		return nil, errors.New("not now")
	}
	label := func(pod string) map[string]string {
		return map[string]string{cri.LabelPodUID: pod, cri.LabelContainerName: "c"}
	}
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "1", Labels: label("own")}, {Id: "2", Labels: label("shares")}}}, nil
}

func (r *cpuRuntime) UpdateContainerResources(_ context.Context, in *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on[in.ContainerId] = in.Linux.CpusetCpus
	if len(r.on) == 2 {
		select {
		case r.moved <- struct{}{}:
		default:
		}
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// TestSpreadAgain checks that updates are retried until the runtime is available.
func TestSpreadAgain(t *testing.T) {
	r := &cpuRuntime{fails: 2, on: map[string]string{}, moved: make(chan struct{}, 1)}
	of := func(pod types.UID, _ string) (cpuset.CPUSet, bool) {
		if pod == "own" {
			return cpuset.New(3), true
		}
		return cpuset.New(0, 1, 2), false
	}
	s := newCPUSetUpdater(r, of, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.updateAll(ctx)
	select {
	case <-r.moved:
	case <-time.After(time.Minute):
		t.Fatal("a failed update is not retried")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if want := map[string]string{"1": "3", "2": "0-2"}; !maps.Equal(r.on, want) {
		t.Errorf("%v, want %v", r.on, want)
	}
}

// TestStartedElsewhere checks that a container that was created before CPUs were allocated
// exclusively to another one is updated when it is started.
func TestStartedElsewhere(t *testing.T) {
	r := &cpuRuntime{on: map[string]string{}}
	s := newCPUSetUpdater(r, func(types.UID, string) (cpuset.CPUSet, bool) { return cpuset.New(0, 1), false }, slog.New(slog.DiscardHandler))
	config := func(cpus string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpusetCpus: cpus}}}
	}
	s.containerStarted(t.Context(), &v1.Pod{}, "c", "same", config("0-1"))
	s.containerStarted(t.Context(), &v1.Pod{}, "c", "other", config("0-3"))
	if want := map[string]string{"other": "0-1"}; !maps.Equal(r.on, want) {
		t.Errorf("%v, want %v", r.on, want)
	}
}
