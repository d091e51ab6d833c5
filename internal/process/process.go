// Package process follows processes by pidfd, children of this process and
// those that an earlier one left behind alike, without a thread for each.
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

// ErrGone tells that the process is no longer there, or that its number is
// another's now.
var ErrGone = errors.New("the process is gone")

// Status is how a process ended.
type Status struct {
	// Code is its exit code, 128 and the signal if one killed it.
	Code int
	// Known is false when nobody could tell; Code is 255 then.
	Known bool
}

// Unknown is the Status of those whose end nobody saw.
var Unknown = Status{Code: 255}

// Handle is a process that is, or was, running. Its methods are safe for
// several goroutines.
type Handle struct {
	pid   int
	start uint64
	fd    *os.File

	once   sync.Once
	done   chan struct{}
	status Status // valid once done is closed
}

// StartTime returns when the process started, in the kernel's clock ticks
// since boot: with the number it names a process for good.
func StartTime(pid int) (uint64, error) {
	_, fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Parent returns the number of the process's parent; 0 is one outside of our PID
// namespace, or nobody.
func Parent(pid int) (int, error) {
	_, fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns a process's name as /proc/PID/stat has it, and the fields after
// it; the first is the state.
func stat(pid int) (name string, fields []string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", nil, ErrGone
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	// The name may hold spaces and parentheses.
	text := string(data)
	end := strings.LastIndexByte(text, ')')
	_, name, _ = strings.Cut(text[:max(end, 0)], "(")
	fields = strings.Fields(text[end+1:])
	if len(fields) < 50 {
		return "", nil, fmt.Errorf("reading the state of process %d: too few fields", pid)
	}
	return name, fields, nil
}

// Open finds a process. A start other than zero must be its start time, or the
// process is ErrGone.
func Open(pid int, start uint64) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	h := &Handle{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	// The number is the open process's for as long as it is not reaped; read
	// after opening, another start time means another process.
	h.start, err = StartTime(pid)
	if err == nil && start != 0 && h.start != start {
		err = ErrGone
	}
	if err != nil {
		h.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return h, nil
}

// PID returns its number.
func (h *Handle) PID() int { return h.pid }

// Start returns its start time, as StartTime does.
func (h *Handle) Start() uint64 { return h.start }

// Signal sends a signal. A process that is gone is ErrGone.
func (h *Handle) Signal(s unix.Signal) error {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return ErrGone
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return ErrGone
	}
	if errors.Is(sent, unix.ESRCH) {
		return ErrGone
	}
	if sent != nil {
		return fmt.Errorf("sending signal %d to process %d: %w", s, h.pid, sent)
	}
	return nil
}

// Setns moves the calling thread into the process's namespaces of the kinds.
// The caller has locked the thread.
func (h *Handle) Setns(kinds int) error {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return ErrGone
	}
	var moved error
	if err := conn.Control(func(fd uintptr) { moved = unix.Setns(int(fd), kinds) }); err != nil {
		return ErrGone
	}
	if moved != nil {
		return fmt.Errorf("entering the namespaces of process %d: %w", h.pid, moved)
	}
	return nil
}

// File returns a duplicate of the process's file descriptor number, closed on
// exec.
func (h *Handle) File(number int) (int, error) {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return -1, ErrGone
	}
	got := -1
	var failed error
	if err := conn.Control(func(fd uintptr) { got, failed = unix.PidfdGetfd(int(fd), number, 0) }); err != nil {
		return -1, ErrGone
	}
	if failed != nil {
		return -1, fmt.Errorf("taking file %d of process %d: %w", number, h.pid, failed)
	}
	return got, nil
}

// Done is closed when the process has ended. The first call begins to follow
// it, and reaps it if it is a child.
func (h *Handle) Done() <-chan struct{} {
	h.once.Do(func() { go h.follow() })
	return h.done
}

// Status returns how the process ended; only after Done is closed.
func (h *Handle) Status() Status { return h.status }

// Close lets go of the process. Done is closed if it is being followed, with
// Unknown, which ends the follower.
func (h *Handle) Close() error { return h.fd.Close() }

func (h *Handle) follow() {
	defer close(h.done)
	h.status = Unknown
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

// readable tells whether the process of a pidfd has ended.
func readable(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(polled, 0)
	return err == nil && n == 1
}

// reap tells how an ended process ended: as its parent, else from the state
// that it leaves until its parent has asked, else from what the kernel keeps.
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
	// Reaped meanwhile.
	if s, ok := exitInfo(fd); ok {
		return s
	}
	return Unknown
}

// fromSiginfo reads what waitid tells: signo, errno, code, a gap on 64 bits,
// then pid, uid and status.
func fromSiginfo(info *unix.Siginfo) Status {
	words := (*[8]int32)(unsafe.Pointer(info))
	code, status := words[2], words[6]
	const exited = 1 // CLD_EXITED
	if code == exited {
		return Status{Code: int(status), Known: true}
	}
	return Status{Code: 128 + int(status&0x7f), Known: true}
}

// fromWait reads a status as wait4 tells it.
func fromWait(status int) Status {
	w := unix.WaitStatus(status)
	if w.Signaled() {
		return Status{Code: 128 + int(w.Signal()), Known: true}
	}
	return Status{Code: w.ExitStatus(), Known: true}
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h> as Linux 6.15 has it.
type pidfdInfo struct {
	Mask, CgroupID uint64
	_              [11]uint32
	ExitCode       int32
}

const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3
)

// exitInfo asks the pidfd, which knows from Linux 6.15 on once the process is
// reaped.
func exitInfo(fd int) (Status, bool) {
	info := pidfdInfo{Mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.Mask&pidfdInfoExit == 0 {
		return Status{}, false
	}
	return fromWait(int(info.ExitCode)), true
}

var _ io.Closer = (*Handle)(nil)
