package dra

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// fakeHealthServer is a driver that reports the device health that a test sends to it.
type fakeHealthServer struct {
	healthv1.UnimplementedDRAResourceHealthServer
	responses chan *healthv1.NodeWatchResourcesResponse
}

func (p *fakeHealthServer) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest, s grpc.ServerStreamingServer[healthv1.NodeWatchResourcesResponse]) error {
	for {
		select {
		case r, ok := <-p.responses:
			if !ok {
				return nil
			}
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func healthResponse(is healthv1.HealthStatus, message string, lasts int64) *healthv1.NodeWatchResourcesResponse {
	return &healthv1.NodeWatchResourcesResponse{Devices: []*healthv1.DeviceHealth{{
		Device: &healthv1.DeviceIdentifier{PoolName: "n", DeviceName: "gpu-0"}, Health: is, Message: message, HealthCheckTimeoutSeconds: lasts,
	}}}
}

// TestHealth checks that the health that a driver reports reaches the status of a container.
func TestHealth(t *testing.T) {
	says := &fakeHealthServer{responses: make(chan *healthv1.NodeWatchResourcesResponse)}
	_, plugin := serve(t, func(s *grpc.Server) { healthv1.RegisterDRAResourceHealthServer(s, says) })
	plugin.Versions = append(plugin.Versions, healthv1.DRAResourceHealthService)
	changed := make(chan []types.UID, 16)
	m, err := New(Config{Root: t.TempDir(), NodeName: "n", Kube: fake.NewClientset(claim("a", "p")), Changed: func(l []types.UID) { changed <- l }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, m)
	if err := m.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	p := pod("p", "a")
	if err := m.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, is v1.ResourceHealthStatus, message string) {
		t.Helper()
		got := m.Health(p, "c")
		if len(got) != 1 || got[0].Name != "claim:my-a" || len(got[0].Resources) != 2 {
			t.Fatalf("%s: %+v", when, got)
		}
		i := slices.IndexFunc(got[0].Resources, func(h v1.ResourceHealth) bool { return h.ResourceID == "example.com/gpu=0" })
		if i < 0 || got[0].Resources[i].Health != is || message != "" && (got[0].Resources[i].Message == nil || *got[0].Resources[i].Message != message) {
			t.Errorf("%s: %+v, want %s", when, got[0].Resources, is)
		}
	}
	heard := func(when string) {
		t.Helper()
		select {
		case l := <-changed:
			if !slices.Equal(l, []types.UID{"p"}) {
				t.Errorf("%s: %q have changed", when, l)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: no notification", when)
		}
	}
	expect("at first", v1.ResourceHealthStatusUnknown, "")
	says.responses <- healthResponse(healthv1.HealthStatus_HEALTHY, "", 0)
	heard("well")
	expect("well", v1.ResourceHealthStatusHealthy, "")
	says.responses <- healthResponse(healthv1.HealthStatus_UNHEALTHY, strings.Repeat("x", 2000), 0)
	heard("unwell")
	expect("unwell", v1.ResourceHealthStatusUnhealthy, strings.Repeat("x", 1021)+"...")
	says.responses <- healthResponse(healthv1.HealthStatus_HEALTHY, "", 1)
	heard("well for a second")
	heard("the second is over")
	expect("the second is over", v1.ResourceHealthStatusUnknown, "")
	says.responses <- healthResponse(healthv1.HealthStatus_UNHEALTHY, "", 1000)
	heard("unwell again")
	m.Deregister(plugin)
	heard("the driver is gone")
	expect("the driver is gone", v1.ResourceHealthStatusUnknown, "")
	m.watches.Wait()
	if got := m.Health(p, "other"); got != nil {
		t.Errorf("unknown container: %+v", got)
	}
}
