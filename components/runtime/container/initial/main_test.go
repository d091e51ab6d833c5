//go:build cgo

package initial

import (
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	if !actAsInit() {
		leakcheck.Main(m)
	}
}
