package crifake

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdatePodSandboxResources records the call and stores the request, which Resized returns. It changes no limits.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest, _ ...grpc.CallOption) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.recordCall("UpdatePodSandboxResources", req.PodSandboxId); err != nil {
		return nil, err
	}
	r.resized[req.PodSandboxId] = req
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// Resized returns the last resource update of a sandbox, or nil if there was none.
func (r *Runtime) Resized(sandbox string) *runtimeapi.UpdatePodSandboxResourcesRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resized[sandbox]
}
