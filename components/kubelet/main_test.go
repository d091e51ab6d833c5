package kubelet

import (
	"testing"

	"hyperkube/internal/testing/testisolate"
)

// TestMain isolates mounts, because the kubelet mounts its root directory on itself to share mounts
// with pods.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts) }
