package kubelet

import (
	"testing"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testisolate"
)

// TestMain isolates mounts, because the kubelet mounts its root directory on itself to share mounts
// with pods.
func TestMain(m *testing.M) {
	testisolate.Main(m, testisolate.Mounts,
		// New creates the event broadcaster, which only Run shuts down, and many tests do not call Run.
		leakcheck.Ignore("k8s.io/apimachinery/pkg/watch.(*Broadcaster).loop"))
}
