package kubelet

import (
	"testing"

	"hyperkube/internal/testapart"
)

// The kubelet mounts its own folder once more, to share with pods what is mounted there.
func TestMain(m *testing.M) { testapart.Main(m, testapart.Mounts) }
