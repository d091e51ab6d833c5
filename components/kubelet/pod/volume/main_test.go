package volume

import (
	"testing"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"

	"hyperkube/internal/testing/testisolate"
)

// TestMain runs the tests of root in a separate mount namespace, so that volumes that a failed test
// leaves mounted do not affect the host.
func TestMain(m *testing.M) {
	// pathrs opens a handle of /proc at first use and keeps it, so open it before the check for leaks.
	if f, err := pathrs.OpenInRoot("/", "proc"); err == nil {
		f.Close()
	}
	testisolate.Main(m, testisolate.Mounts)
}
