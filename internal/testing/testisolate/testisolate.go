// Package testisolate runs the tests of a package in separate namespaces, so that their mounts and
// links are removed when they terminate, even if they crash. Like package leakcheck, it fails if the
// tests leave resources behind.
package testisolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

// isolatedEnv is the environment variable that marks the test program that Main has started in the
// new namespaces.
const isolatedEnv = "HYPERKUBE_TEST_APART"

// The kinds of namespaces that Main can create for the tests of a package.
const (
	Mounts  = syscall.CLONE_NEWNS
	Network = syscall.CLONE_NEWNET
)

// Main runs the tests of m in new namespaces, the flags Mounts and Network, checks for leaks with
// the options, and exits. Call it from TestMain. Only root can create namespaces; for other users,
// the tests run in the current namespaces, and tests that need root are skipped.
func Main(m *testing.M, namespaces uintptr, options ...leakcheck.Option) {
	if os.Geteuid() != 0 {
		leakcheck.Main(m, options...)
	}
	if os.Getenv(isolatedEnv) != "" {
		leakcheck.Main(m, append(options, leakcheck.Namespaces(namespaces))...)
	}
	os.Exit(reexec(namespaces))
}

// reexec runs this program again in new namespaces and returns its exit code.
func reexec(namespaces uintptr) int {
	// The child must be killed when this process terminates. Pdeathsig depends on the thread that
	// started it, so lock this thread.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolatedEnv+"=1")
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
