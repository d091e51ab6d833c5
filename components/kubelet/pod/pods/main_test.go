package pods

import (
	"testing"

	"hyperkube/internal/testing/testisolate"
)

// TestMain runs the tests of root in a separate mount namespace, so that mounts that a failed test
// leaves behind do not affect other processes.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts) }
