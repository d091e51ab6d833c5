package collect

import (
	"os"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	leakcheck.Main(m)
}
