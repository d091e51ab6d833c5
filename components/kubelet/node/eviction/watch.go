package eviction

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MemoryWatch requests kernel notifications about low memory, so that memory need not be measured
// frequently: a memory threshold of the root cgroup on cgroup v1, pressure stall information (PSI)
// on cgroup v2. Only C is safe for concurrent use.
type MemoryWatch struct {
	dir      string // root cgroup of cgroup v1; empty to use PSI
	fired    chan struct{}
	file     *os.File // file that becomes readable; nil while nothing is armed
	extraFDs []int    // other descriptors to close
	armed    int64    // threshold in bytes of used memory
	done     chan struct{}
}

// minRearmDifference is the minimum difference, in bytes, between the armed and the required threshold before
// the threshold is armed again.
const minRearmDifference = 16 << 20

// stallTrigger is the PSI trigger that notifies when some process has waited for memory for 100 ms within a
// second.
const stallTrigger = "some 100000 1000000"

// NewMemoryWatch returns a MemoryWatch without a request. dir is the root cgroup of the memory controller of
// cgroup v1, or empty on cgroup v2.
func NewMemoryWatch(dir string) *MemoryWatch {
	return &MemoryWatch{dir: dir, fired: make(chan struct{}, 1)}
}

// C returns a channel that receives a value when memory may be low.
func (w *MemoryWatch) C() <-chan struct{} { return w.fired }

// Arm requests a notification for when memory usage has grown by left bytes, at which the eviction threshold is
// met. It replaces the previous request if that differs much. With PSI, left is ignored and an existing request
// remains. If left is not positive, the threshold is met already and nothing is requested. It returns an error if
// the kernel rejects the request.
func (w *MemoryWatch) Arm(left int64) error {
	if w.dir == "" {
		if w.file != nil {
			return nil
		}
		return w.armPSI()
	}
	if left <= 0 {
		// The threshold is met already.
		w.Close()
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(w.dir, "memory.usage_in_bytes"))
	if err != nil {
		return fmt.Errorf("reading memory usage: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return fmt.Errorf("parsing memory usage: %w", err)
	}
	at := used + left
	if w.file != nil && w.alive() && max(at-w.armed, w.armed-at) < max(minRearmDifference, left/10) {
		return nil
	}
	w.Close()
	return w.armThreshold(at)
}

// alive reports whether the requested notification has not been sent yet.
func (w *MemoryWatch) alive() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// armThreshold requests one notification, on cgroup v1, for when memory usage reaches at bytes.
//
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html#memory-thresholds
func (w *MemoryWatch) armThreshold(at int64) error {
	usage, err := os.Open(filepath.Join(w.dir, "memory.usage_in_bytes"))
	if err != nil {
		return fmt.Errorf("arming memory threshold: %w", err)
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("arming memory threshold: %w", err)
	}
	file := os.NewFile(uintptr(fd), "eventfd")
	line := fmt.Sprintf("%d %d %d", fd, usage.Fd(), at)
	if err := os.WriteFile(filepath.Join(w.dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		file.Close()
		return fmt.Errorf("arming memory threshold: %w", err)
	}
	w.armed = at
	w.notify(file, func() error {
		var count [8]byte
		_, err := file.Read(count[:])
		return err
	}, true)
	return nil
}

// armPSI requests a notification for each memory stall of the whole machine. The kernel signals stalls as an
// exceptional condition (EPOLLPRI), which Go's poller does not support. Therefore an epoll descriptor that
// watches for it is added to Go's poller.
//
// https://docs.kernel.org/accounting/psi.html
func (w *MemoryWatch) armPSI() error {
	psi, err := unix.Open("/proc/pressure/memory", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watching memory stalls: %w", err)
	}
	if _, err := unix.Write(psi, append([]byte(stallTrigger), 0)); err != nil {
		unix.Close(psi)
		return fmt.Errorf("watching memory stalls: %w", err)
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		unix.Close(psi)
		return fmt.Errorf("watching memory stalls: %w", err)
	}
	if err := errors.Join(unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, psi, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(psi)}), unix.SetNonblock(ep, true)); err != nil {
		unix.Close(psi)
		unix.Close(ep)
		return fmt.Errorf("watching memory stalls: %w", err)
	}
	file := os.NewFile(uintptr(ep), "epoll")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		unix.Close(psi)
		return fmt.Errorf("watching memory stalls: %w", err)
	}
	w.extraFDs = []int{psi}
	w.notify(file, func() error {
		var events [1]unix.EpollEvent
		var n int
		var wrong error
		err := conn.Read(func(fd uintptr) bool {
			n, wrong = unix.EpollWait(int(fd), events[:], 0)
			return n != 0 || wrong != nil && !errors.Is(wrong, unix.EINTR)
		})
		return errors.Join(err, wrong)
	}, false)
	return nil
}

// notify starts a goroutine that sends to C each time wait returns without an error. With once it stops after
// the first time. Close stops it by closing file, on which wait blocks.
func (w *MemoryWatch) notify(file *os.File, wait func() error, once bool) {
	ended := make(chan struct{})
	w.file, w.done = file, ended
	go func() {
		defer close(ended)
		for wait() == nil {
			select {
			case w.fired <- struct{}{}:
			default:
			}
			if once {
				return
			}
		}
	}()
}

// Close cancels the request and waits until its goroutine has returned. Without a request it does nothing.
func (w *MemoryWatch) Close() {
	if w.file == nil {
		return
	}
	w.file.Close()
	<-w.done
	for _, fd := range w.extraFDs {
		unix.Close(fd)
	}
	w.file, w.extraFDs = nil, nil
}
