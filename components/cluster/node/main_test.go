package node

import (
	"testing"

	"hyperkube/internal/testapart"
)

// TestMain gives root's tests mounts of their own.
func TestMain(m *testing.M) { testapart.Main(m, testapart.Mounts) }
