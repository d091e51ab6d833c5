// Package testapart runs the tests of a package in namespaces of their own: what they
// mount and link goes with them, however they end.
package testapart

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// marker is the environment variable of a test program that is apart already.
const marker = "HYPERKUBE_TEST_APART"

// Namespaces that a package may ask for.
const (
	Mounts  = syscall.CLONE_NEWNS
	Network = syscall.CLONE_NEWNET
)

// Main is what a TestMain does that runs m in further namespaces, and does not
// return. Only root can have some: for others the tests run as they are, and skip
// what needs root.
func Main(m *testing.M, namespaces uintptr) {
	if os.Geteuid() != 0 || os.Getenv(marker) != "" {
		os.Exit(m.Run())
	}
	os.Exit(again(namespaces))
}

// again runs this program once more, and returns how it exits.
func again(namespaces uintptr) int {
	// It is to end with this process, of which the kernel takes the thread's end
	// for the process's.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: namespaces, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
