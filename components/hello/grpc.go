package hello

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// readyService is the service name for readiness in the gRPC health service.
const readyService = "ready"

// grpcHealth is a gRPC health service that reports the same states as the HTTP endpoints /healthz
// and /readyz of the server s.
//
// https://github.com/grpc/grpc/blob/HEAD/doc/health-checking.md
type grpcHealth struct {
	healthpb.UnimplementedHealthServer
	s *Server
}

// Check returns the liveness of the server or, for the service readyService, its readiness. For
// other services it returns NotFound.
func (h grpcHealth) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	ok := !h.s.unhealthy.Load()
	switch req.GetService() {
	case "":
	case readyService:
		ok = !h.s.unready.Load() && h.s.acceptsRequests()
	default:
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	if ok {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
}

// serveGRPC serves the gRPC health service on GRPCAddress in the background until stop is called.
func (s *Server) serveGRPC() (stop func(), err error) {
	listener, err := net.Listen("tcp", s.cfg.GRPCAddress)
	if err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, grpcHealth{s: s})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // returns when the server is stopped
	}()
	return func() { server.Stop(); <-done }, nil
}
