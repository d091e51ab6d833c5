//go:build cgo

package initial

// #include "seccomp.h"
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncPipeEnv and logPipeEnv are the environment variables in which libcontainer passes file descriptors to the
// init process of a container.
const (
	syncPipeEnv = "_LIBCONTAINER_SYNCPIPE"
	logPipeEnv  = "_LIBCONTAINER_LOGPIPE"
	// filterEnv is the environment variable for the file with the seccomp filter. In libcontainer it has another
	// purpose: it is a socket, to which the init code sends a message. So if this package did not use the variable,
	// the start would fail, and the container would not run without its filter.
	filterEnv = "_LIBCONTAINER_PIDFD_SOCK"
)

// maxFilter is the maximum size of a seccomp filter: 4096 instructions.
const maxFilter = 4096 * 8

// inheritedFilter returns the file descriptor of the file with the seccomp filter that the runtime has passed to this
// process, or -1 if the container has no filter.
func inheritedFilter() (int, error) {
	value := os.Getenv(filterEnv)
	if value == "" {
		return -1, nil
	}
	fd, err := strconv.Atoi(value)
	if err == nil {
		err = os.Unsetenv(filterEnv)
	}
	return fd, err
}

// useFilter arranges that the seccomp filter in the file fd is loaded when libcontainer's init code has set up the
// container and waits for permission to continue. It places itself between libcontainer's init code and the runtime to
// detect that moment. It closes fd.
func useFilter(fd int) error {
	defer unix.Close(fd)
	program := make([]byte, maxFilter+1)
	size, err := unix.Pread(fd, program, 0)
	if err != nil {
		return fmt.Errorf("reading seccomp filter: %w", err)
	}
	if size == 0 || size > maxFilter {
		return fmt.Errorf("reading seccomp filter: invalid size %d", size)
	}
	outer, err := strconv.Atoi(os.Getenv(syncPipeEnv))
	if err != nil {
		return fmt.Errorf("finding libcontainer's sync socket: %w", err)
	}
	unix.CloseOnExec(outer)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("creating sync socket: %w", err)
	}
	if err := os.Setenv(syncPipeEnv, strconv.Itoa(pair[0])); err != nil {
		return err
	}
	if errno := C.load_filter_when_ready(C.int(pair[1]), C.int(outer), unsafe.Pointer(&program[0]), C.size_t(size)); errno != 0 {
		return fmt.Errorf("preparing seccomp filter: %w", syscall.Errno(errno))
	}
	return nil
}

// logPipe returns the file descriptor of the pipe to which libcontainer's init process logs, or -1 if there is none.
func logPipe() int {
	fd, err := strconv.Atoi(os.Getenv(logPipeEnv))
	if err != nil {
		return -1
	}
	return fd
}
