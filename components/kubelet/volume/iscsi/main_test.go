package iscsi

import (
	"testing"

	"hyperkube/internal/testapart"
)

// TestMain gives root's tests a mount namespace of their own: disks that one leaves
// mounted when it fails are nobody else's.
func TestMain(m *testing.M) { testapart.Main(m, testapart.Mounts) }
