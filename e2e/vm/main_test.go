package vm

import (
	"fmt"
	"os"
	"testing"
)

// imageEnv is the environment variable with the name of the virtual machine's image. It is only set in the machine.
const imageEnv = "HYPERKUBE_VM"

// restartRequested is the exit status of the test program if a test continues after a restart of the machine.
const restartRequested = 75

func TestMain(m *testing.M) {
	if os.Getenv(imageEnv) == "" {
		fmt.Println("e2e/vm: not in a virtual machine: nothing is tested (make e2e-vm)")
		os.Exit(0)
	}
	code := m.Run()
	if _, err := os.Stat(requestFile); err == nil && code == 0 {
		code = restartRequested
	}
	os.Exit(code)
}
