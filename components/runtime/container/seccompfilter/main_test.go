package seccompfilter

import (
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	if loadProfile() {
		return
	}
	leakcheck.Main(m)
}
