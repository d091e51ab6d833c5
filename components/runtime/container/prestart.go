//go:build cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/container/initial"
)

// prestartPool keeps at most one pre-started process: a process of this program that waits until it becomes the init
// process of a container (see package initial). Pre-starting saves half of the time of a container start. A process is
// started in the background when a sandbox is created and when the previous one was used. If none is ready because of
// concurrent starts, a container starts without it. The pre-started process exits when this process exits.
//
// Its methods are safe for concurrent use.
type prestartPool struct {
	mu       sync.Mutex // guards the fields below
	ready    *prestarted
	starting bool
	closed   bool
	work     sync.WaitGroup

	// sealed reports whether pre-starting is possible, see isSealed.
	sealed func() bool
}

// prestarted is a process that was started before it is needed and waits until it becomes the first process of a
// container.
type prestarted struct {
	pid   int
	pidfd int
	// sock is the socket to the process. The process exits when it is closed.
	sock *os.File
}

func newPrestartPool() *prestartPool { return &prestartPool{sealed: sync.OnceValue(isSealed)} }

// isSealed reports whether this program runs from a sealed memfd, which containers cannot modify. If it does not,
// libcontainer copies the program for each container, so a process cannot be pre-started.
func isSealed() bool {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer f.Close()
	const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&all == all
}

// fill starts a process in the background. It does nothing if one is ready or being started, if the pool is
// closed, or if this program does not run from a sealed memfd. If the start fails, the next container starts
// without a pre-started process.
func (s *prestartPool) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.starting || s.ready != nil || !s.sealed() {
		return
	}
	s.starting = true
	s.work.Go(func() {
		made, err := prestart()
		s.mu.Lock()
		s.starting = false
		if err == nil && !s.closed {
			s.ready, made = made, nil
		}
		s.mu.Unlock()
		if err == nil && made != nil {
			made.discard()
		}
	})
}

// take removes the pre-started process from the pool and returns it, or nil if none is ready or it has exited.
// The caller must close or discard it.
func (s *prestartPool) take() *prestarted {
	s.mu.Lock()
	one := s.ready
	s.ready = nil
	s.mu.Unlock()
	if one != nil && one.exited() {
		one.close()
		return nil
	}
	return one
}

// close kills the pre-started process and prevents new ones. It waits for a start in progress.
func (s *prestartPool) close() {
	s.mu.Lock()
	s.closed = true
	one := s.ready
	s.ready = nil
	s.mu.Unlock()
	if one != nil {
		one.discard()
	}
	s.work.Wait()
}

// prestart starts this program as `init` in a new PID namespace, where package initial waits for a container.
func prestart() (*prestarted, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("pre-starting process: %w", err)
	}
	defer unix.Close(pair[1])
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("pre-starting process: %w", err)
	}
	defer null.Close()
	one := &prestarted{sock: os.NewFile(uintptr(pair[0]), "pre-started")}
	one.pid, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "init"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{initial.PrestartEnv + "=1", "GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), uintptr(pair[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID, PidFD: &one.pidfd},
	})
	if err != nil {
		one.sock.Close()
		return nil, fmt.Errorf("pre-starting process: %w", err)
	}
	return one, nil
}

// exited reports whether the process has exited unexpectedly. If so, the process is reaped.
func (s *prestarted) exited() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, s.pidfd, &info, unix.WEXITED|unix.WNOHANG, nil)
	return err != nil || info.Signo != 0
}

// close releases the file descriptors for a process that has become a container's first process, or has been reaped.
func (s *prestarted) close() {
	s.sock.Close()
	unix.Close(s.pidfd)
}

// discard kills and reaps a process that is not used.
func (s *prestarted) discard() {
	_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0)
	for {
		err := unix.Waitid(unix.P_PIDFD, s.pidfd, nil, unix.WEXITED, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	s.close()
}

// handOver prepares the start of p, the first process of the container c; call it before p is started. It sends the
// pre-started process s the cgroups to join, the path proc of the container's root in which to mount /proc (none if
// empty), and the seccomp filter to load (none if nil). When libcontainer starts p, p sends its inherited file
// descriptors to s and exits, and s continues in its place.
func (s *prestarted) handOver(p *libcontainer.Process, c *libcontainer.Container, proc string, filter *os.File) error {
	state, err := c.State()
	if err != nil {
		return fmt.Errorf("preparing pre-started process: %w", err)
	}
	lines := []string{proc}
	for _, dir := range state.CgroupPaths {
		lines = append(lines, dir)
	}
	var rights []byte
	if filter != nil {
		rights = unix.UnixRights(int(filter.Fd()))
	}
	if err := unix.Sendmsg(int(s.sock.Fd()), []byte(strings.Join(lines, "\n")), rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("preparing pre-started process: %w", err)
	}
	// The field has another purpose in libcontainer, but handover.c uses the socket.
	p.PidfdSocket = s.sock
	return nil
}

// canUsePrestarted reports whether a pre-started process can become the container's init process: the container must
// have its own new PID namespace, and no user namespace, time namespace or network devices.
func canUsePrestarted(spec *specs.Spec) bool {
	private := false
	for _, n := range spec.Linux.Namespaces {
		switch n.Type {
		case specs.PIDNamespace:
			private = n.Path == ""
		case specs.UserNamespace, specs.TimeNamespace:
			return false
		}
	}
	return private && len(spec.Linux.NetDevices) == 0
}
