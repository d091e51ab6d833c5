package compose_test

import (
	"os"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	// The users that TestHostile starts leave their connections open.
	if os.Getenv(roleEnv) != "" {
		os.Exit(m.Run())
	}
	leakcheck.Main(m)
}
