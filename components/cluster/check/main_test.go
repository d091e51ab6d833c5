package check

import (
	"os"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(machineEnv); name != "" {
		os.Exit(checkBrokenMachine(name))
	}
	leakcheck.Main(m)
}
