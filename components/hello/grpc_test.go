package hello

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestGRPCHealth(t *testing.T) {
	s, err := New(Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	s.started = time.Now()
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		got, err := grpcHealth{s: s}.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatus()
	}
	const serving, not = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	if check("") != serving || check(readyService) != serving {
		t.Error("a healthy server says that it is not")
	}
	s.draining.Store(true)
	if check("") != serving || check(readyService) != not {
		t.Error("a server that is to stop is alive and not ready")
	}
	s.unhealthy.Store(true)
	if check("") != not {
		t.Error("an unhealthy server says that it is healthy")
	}
	if _, err := (grpcHealth{s: s}).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: %v", err)
	}
}
