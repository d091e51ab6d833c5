package cri

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// methodPrefix is the prefix of the full names of CRI methods.
const methodPrefix = "/runtime.v1."

// deadlines is runtimeRequestTimeout, from which the timeout of each call is derived, so that calls of a
// runtime that hangs fail. Zero means no timeouts.
type deadlines time.Duration

// intercept is the gRPC interceptor of the connection to the runtime. It adds the timeout for the method to the
// context of the call, and then makes the call.
func (b deadlines) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if within := b.timeout(method, req); within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// timeout returns the timeout of a call; zero means none. RunPodSandbox has twice the timeout. The timeout in a
// request to stop a container or run a command, such as the grace period, is added; that of a checkpoint
// applies if it is larger. Image pulls and commands without a timeout have none.
func (b deadlines) timeout(method string, req any) time.Duration {
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
	if strings.HasPrefix(method, methodPrefix) {
		return whole
	}
	return 0
}
