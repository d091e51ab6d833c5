package volume

import (
	"testing"

	"hyperkube/internal/testing/testisolate"
)

// TestMain runs the tests of root in a separate mount namespace, so that volumes that a failed test
// leaves mounted do not affect the host.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts) }
