// Package grpcsocket serves gRPC to processes of the node on unix sockets in the kubelet's root
// directory.
package grpcsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Serve serves the gRPC server on a unix socket until ctx is done. It creates the directory, and recreates
// the socket, by which clients detect that the kubelet has started. what names the clients in errors.
func Serve(ctx context.Context, socket, what string, server *grpc.Server) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("creating the directory of %s: %w", what, err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the socket of %s: %w", what, err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for %s: %w", what, err)
	}
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving %s: %w", what, err)
	}
	return nil
}

// maxQPS and maxBurst limit the rate of unary calls to one of the kubelet's sockets, per second and in a
// burst.
const (
	maxQPS   = 100
	maxBurst = 10
)

// RateLimited returns the options of a gRPC server that rejects unary calls above the rate limit with
// ResourceExhausted. Streams are not limited. After each call that is not rejected, count is called with the
// method's name, the API version and the result of the call, for metrics: for "/v1.PodResourcesLister/List",
// method is "List" and version is "v1".
func RateLimited(count func(method, version string, err error)) []grpc.ServerOption {
	limit := rate.NewLimiter(maxQPS, maxBurst)
	counted := func(full string, err error) {
		version, _, _ := strings.Cut(path.Base(path.Dir(full)), ".")
		count(path.Base(full), version, err)
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if !limit.Allow() {
				return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
			}
			resp, err := handle(ctx, req)
			counted(info.FullMethod, err)
			return resp, err
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			err := handle(srv, stream)
			counted(info.FullMethod, err)
			return err
		}),
	}
}
