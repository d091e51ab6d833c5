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

// MemoryWatch makes the kernel tell when memory runs short, so that nobody
// needs to look often: by a threshold of the root cgroup on version 1, by
// pressure stall information on version 2. All but C is for one goroutine.
type MemoryWatch struct {
	dir   string // of the root cgroup of version 1; empty for stalls
	fired chan struct{}
	file  *os.File // what is read; nil while nothing is armed
	extra []int    // descriptors that go with it
	armed int64    // bytes in use at which the kernel tells
	ended chan struct{}
}

// slack is by how many bytes the armed threshold may be off before it is armed
// anew.
const slack = 16 << 20

// stallTrigger asks to be told when some process has waited for memory for 100
// ms within a second.
const stallTrigger = "some 100000 1000000"

// NewMemoryWatch makes one; dir is the root cgroup of the memory controller of
// version 1, empty if there is none.
func NewMemoryWatch(dir string) *MemoryWatch {
	return &MemoryWatch{dir: dir, fired: make(chan struct{}, 1)}
}

// C tells that memory may have run short.
func (w *MemoryWatch) C() <-chan struct{} { return w.fired }

// Arm asks to be told when left more bytes are in use. What was armed before is
// forgotten.
func (w *MemoryWatch) Arm(left int64) error {
	if w.dir == "" {
		if w.file != nil {
			return nil
		}
		return w.stalls()
	}
	if left <= 0 {
		// It runs short as it is.
		w.Close()
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(w.dir, "memory.usage_in_bytes"))
	if err != nil {
		return fmt.Errorf("measuring memory: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return fmt.Errorf("measuring memory: %w", err)
	}
	at := used + left
	if w.file != nil && w.alive() && max(at-w.armed, w.armed-at) < max(slack, left/10) {
		return nil
	}
	w.Close()
	return w.threshold(at)
}

// alive tells whether the armed threshold has not fired.
func (w *MemoryWatch) alive() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// threshold arms one of version 1.
//
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html#memory-thresholds
func (w *MemoryWatch) threshold(at int64) error {
	usage, err := os.Open(filepath.Join(w.dir, "memory.usage_in_bytes"))
	if err != nil {
		return fmt.Errorf("arming a threshold of memory: %w", err)
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("arming a threshold of memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "eventfd")
	line := fmt.Sprintf("%d %d %d", fd, usage.Fd(), at)
	if err := os.WriteFile(filepath.Join(w.dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		file.Close()
		return fmt.Errorf("arming a threshold of memory: %w", err)
	}
	w.armed = at
	w.follow(file, func() error {
		var count [8]byte
		_, err := file.Read(count[:])
		return err
	}, true)
	return nil
}

// stalls follows the stalls of the whole machine. They are told as an urgent
// condition, which Go's poller does not know, but one epoll in another does.
//
// https://docs.kernel.org/accounting/psi.html
func (w *MemoryWatch) stalls() error {
	psi, err := unix.Open("/proc/pressure/memory", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("following memory stalls: %w", err)
	}
	if _, err := unix.Write(psi, append([]byte(stallTrigger), 0)); err != nil {
		unix.Close(psi)
		return fmt.Errorf("following memory stalls: %w", err)
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		unix.Close(psi)
		return fmt.Errorf("following memory stalls: %w", err)
	}
	if err := errors.Join(unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, psi, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(psi)}), unix.SetNonblock(ep, true)); err != nil {
		unix.Close(psi)
		unix.Close(ep)
		return fmt.Errorf("following memory stalls: %w", err)
	}
	file := os.NewFile(uintptr(ep), "epoll")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		unix.Close(psi)
		return fmt.Errorf("following memory stalls: %w", err)
	}
	w.extra = []int{psi}
	w.follow(file, func() error {
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

// follow tells whenever wait returns without an error; once, if so asked.
func (w *MemoryWatch) follow(file *os.File, wait func() error, once bool) {
	ended := make(chan struct{})
	w.file, w.ended = file, ended
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

// Close forgets what was armed and waits for its end.
func (w *MemoryWatch) Close() {
	if w.file == nil {
		return
	}
	w.file.Close()
	<-w.ended
	for _, fd := range w.extra {
		unix.Close(fd)
	}
	w.file, w.extra = nil, nil
}
