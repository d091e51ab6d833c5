// Package process tracks processes by pidfd, without a thread for each. The processes can be
// children of this process or were started by a previous instance of it.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotFound is returned if a process does not exist anymore: it has been reaped, or its PID
// belongs to another process now.
var ErrNotFound = errors.New("process does not exist")

// Status is the exit status of a process.
type Status struct {
	// Code is the exit code, or 128 plus the signal number if the process was killed by a signal.
	Code int
	// Known is false if the exit status is not available. Code is 255 then.
	Known bool
}

// UnknownStatus is the Status of processes whose exit status is not available.
var UnknownStatus = Status{Code: 255}

// Handle refers to one process that is or was running, even if its PID is used again. Its methods
// are safe for concurrent use.
type Handle struct {
	pid   int
	start uint64
	fd    *os.File

	once   sync.Once
	done   chan struct{}
	status Status // valid after done is closed
}

// StartTime returns the start time of the process pid in clock ticks since boot. PID and start time
// together identify a process uniquely. The error is ErrNotFound if it does not exist.
func StartTime(pid int) (uint64, error) {
	_, fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Parent returns the PID of the parent of the process pid. It is 0 if the parent is outside of this
// PID namespace or does not exist.
func Parent(pid int) (int, error) {
	_, fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns the name of a process in /proc/PID/stat and the fields after it. The first field is
// the state.
func stat(pid int) (name string, fields []string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", nil, ErrNotFound
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading state of process %d: %w", pid, err)
	}
	// The name can contain spaces and parentheses.
	text := string(data)
	end := strings.LastIndexByte(text, ')')
	_, name, _ = strings.Cut(text[:max(end, 0)], "(")
	fields = strings.Fields(text[end+1:])
	if len(fields) < 50 {
		return "", nil, fmt.Errorf("reading state of process %d: too few fields", pid)
	}
	return name, fields, nil
}

// Open returns a Handle of the process pid. start is its start time, as StartTime returns it; if
// start is not zero and the process has another one, the error is ErrNotFound. The caller must
// close the handle.
func Open(pid int, start uint64) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	h := &Handle{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	// The PID is not reused while the pidfd refers to an unreaped process. If the start time, read
	// after opening, differs, the PID belongs to another process.
	h.start, err = StartTime(pid)
	if err == nil && start != 0 && h.start != start {
		err = ErrNotFound
	}
	if err != nil {
		h.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return h, nil
}

// PID returns the process ID.
func (h *Handle) PID() int { return h.pid }

// Start returns the start time of the process, as StartTime does.
func (h *Handle) Start() uint64 { return h.start }

// Signal sends a signal. It returns ErrNotFound if the process does not exist.
func (h *Handle) Signal(s unix.Signal) error {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return ErrNotFound
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return ErrNotFound
	}
	if errors.Is(sent, unix.ESRCH) {
		return ErrNotFound
	}
	if sent != nil {
		return fmt.Errorf("sending signal %d to process %d: %w", s, h.pid, sent)
	}
	return nil
}

// Setns moves the calling thread to the namespaces of the process. kinds are CLONE_NEW* flags. The
// caller must have locked the goroutine to the thread.
func (h *Handle) Setns(kinds int) error {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return ErrNotFound
	}
	var moved error
	if err := conn.Control(func(fd uintptr) { moved = unix.Setns(int(fd), kinds) }); err != nil {
		return ErrNotFound
	}
	if moved != nil {
		return fmt.Errorf("entering namespaces of process %d: %w", h.pid, moved)
	}
	return nil
}

// File returns a duplicate of the file descriptor number of the process, with close-on-exec set.
// The caller must close it.
func (h *Handle) File(number int) (int, error) {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return -1, ErrNotFound
	}
	got := -1
	var failed error
	if err := conn.Control(func(fd uintptr) { got, failed = unix.PidfdGetfd(int(fd), number, 0) }); err != nil {
		return -1, ErrNotFound
	}
	if failed != nil {
		return -1, fmt.Errorf("duplicating file descriptor %d of process %d: %w", number, h.pid, failed)
	}
	return got, nil
}

// Done returns a channel that is closed when the process has exited. The first call starts to track
// the process, and reaps it if it is a child.
func (h *Handle) Done() <-chan struct{} {
	h.once.Do(func() { go h.follow() })
	return h.done
}

// Status returns the exit status. Call it only after Done is closed.
func (h *Handle) Status() Status { return h.status }

// Close releases the handle. If the process is being tracked, Done is closed and Status returns
// UnknownStatus.
func (h *Handle) Close() error { return h.fd.Close() }

// follow waits until the process exits or the handle is closed, stores the status and closes done.
func (h *Handle) follow() {
	defer close(h.done)
	h.status = UnknownStatus
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		if !readable(int(fd)) {
			return false
		}
		h.status = h.reap(int(fd))
		return true
	})
}

// readable reports whether the process of the pidfd fd has exited.
func readable(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(polled, 0)
	return err == nil && n == 1
}

// reap returns the exit status of the process, which has exited: from waitid if it is a child,
// which also reaps it, else from the pidfd, else from /proc/PID/stat if it is a zombie.
func (h *Handle) reap(fd int) Status {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil:
			return fromSiginfo(&info)
		}
		break
	}
	if s, ok := exitInfo(fd); ok {
		return s
	}
	if _, fields, err := stat(h.pid); err == nil && fields[0] == "Z" && fields[19] == strconv.FormatUint(h.start, 10) {
		if code, err := strconv.Atoi(fields[49]); err == nil {
			return fromWait(code)
		}
	}
	// The parent has reaped the process in between.
	if s, ok := exitInfo(fd); ok {
		return s
	}
	return UnknownStatus
}

// fromSiginfo converts the result of waitid. The words of the struct are signo, errno, code,
// padding on 64 bits, then pid, uid and status.
func fromSiginfo(info *unix.Siginfo) Status {
	words := (*[8]int32)(unsafe.Pointer(info))
	code, status := words[2], words[6]
	const exited = 1 // CLD_EXITED
	if code == exited {
		return Status{Code: int(status), Known: true}
	}
	return Status{Code: 128 + int(status&0x7f), Known: true}
}

// fromWait converts an exit status as wait4 returns it. A process that was killed by a signal gets the code 128
// plus the signal number.
func fromWait(status int) Status {
	w := unix.WaitStatus(status)
	if w.Signaled() {
		return Status{Code: 128 + int(w.Signal()), Known: true}
	}
	return Status{Code: w.ExitStatus(), Known: true}
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h> in Linux 6.15.
type pidfdInfo struct {
	Mask, CgroupID uint64
	_              [11]uint32
	ExitCode       int32
}

const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3
)

// exitInfo reads the exit status from the pidfd fd. It returns false if the kernel does not provide
// it: Linux 6.15 and later do, after the process was reaped.
func exitInfo(fd int) (Status, bool) {
	info := pidfdInfo{Mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.Mask&pidfdInfoExit == 0 {
		return Status{}, false
	}
	return fromWait(int(info.ExitCode)), true
}

var _ io.Closer = (*Handle)(nil)
