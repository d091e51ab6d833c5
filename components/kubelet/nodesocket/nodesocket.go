// Package nodesocket serves gRPC to programs of the node at sockets in the
// kubelet's own folder.
package nodesocket

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

// Serve answers with server at socket until ctx ends. The socket is made anew, by
// which clients tell that the kubelet has started, and its folder if it is not there.
// what names who is served, for errors.
func Serve(ctx context.Context, socket, what string, server *grpc.Server) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("making the directory of %s: %w", what, err)
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

// askedASecond and askedAtOnce bound how often single answers are asked for.
const (
	askedASecond = 100
	askedAtOnce  = 10
)

// Bounded are the options of a server that refuses to give single answers too often.
// count is told of each call that is not refused: "List" and "v1" of
// "/v1.PodResourcesLister/List".
func Bounded(count func(method, version string, err error)) []grpc.ServerOption {
	limit := rate.NewLimiter(askedASecond, askedAtOnce)
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
