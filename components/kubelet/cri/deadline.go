package cri

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// services is how the methods of CRI begin.
const services = "/runtime.v1."

// bounded bounds calls by what the kubelet's runtimeRequestTimeout says of them:
// a runtime that hangs is one that fails.
type bounded time.Duration

// intercept as grpc.UnaryClientInterceptor.
func (b bounded) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if within := b.within(method, req); within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// within is how long a call may take; zero: as long as it does. A sandbox may take
// twice as long as other things, and what has a time of its own has that besides.
func (b bounded) within(method string, req any) time.Duration {
	whole := time.Duration(b)
	if whole == 0 {
		return 0
	}
	switch r := req.(type) {
	case *runtimeapi.PullImageRequest:
		return 0
	case *runtimeapi.RunPodSandboxRequest:
		return 2 * whole
	case *runtimeapi.StopContainerRequest:
		return whole + time.Duration(r.Timeout)*time.Second
	case *runtimeapi.ExecSyncRequest:
		if r.Timeout == 0 {
			return 0
		}
		return whole + time.Duration(r.Timeout)*time.Second
	case *runtimeapi.CheckpointContainerRequest:
		return max(whole, time.Duration(r.Timeout)*time.Second)
	}
	if strings.HasPrefix(method, services) {
		return whole
	}
	return 0
}
