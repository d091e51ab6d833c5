package pods

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestSpans checks that operations on a pod are traced from its start to its termination.
func TestSpans(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	p := sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept))
	b := newBenchWith(t, crifake.New("busybox:1"), func(cfg *Config) { cfg.Tracer = p.Tracer("test") })
	b.add(newPod("a", nil))
	pod := b.await("a", "ready", ready)
	now := metav1.NewTime(time.Now())
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, new(int64)
	b.manager.Set(b.ctx, pod)
	select {
	case <-b.registry.Cleaned(pod.UID):
	case <-time.After(time.Minute):
		t.Fatal("the pod does not terminate")
	}
	seen := map[string]bool{}
	for limit := time.After(time.Minute); !seen[spanSync] || !seen[spanTerminating] || !seen[spanTerminated]; {
		for _, s := range kept.GetSpans() {
			seen[s.Name] = true
			if s.Status.Code == codes.Error || s.Attributes[0].Value.AsString() != "uid-a" {
				t.Fatalf("span %+v", s)
			}
		}
		select {
		case <-limit:
			t.Fatalf("spans %v", seen)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
