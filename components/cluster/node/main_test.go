package node

import (
	"testing"

	"hyperkube/internal/testing/testisolate"
)

// TestMain runs tests of root in a separate mount namespace.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts) }
