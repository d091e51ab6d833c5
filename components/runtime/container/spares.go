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

// spares keeps at most one process that is ready to become a container's first
// one, see package initial: half of what a start takes is what such a process
// has behind it. It is made when a container is to be expected and when the last
// one was used, behind the back of who waits. Whoever finds none, for many start
// at once, starts without. A spare ends with this process, however that ends.
//
// Its methods are safe for several goroutines.
type spares struct {
	mu     sync.Mutex // guards what follows
	ready  *spare
	making bool
	closed bool
	work   sync.WaitGroup

	sealed func() bool
}

// spare is a process that waits to be used.
type spare struct {
	pid   int
	pidfd int
	// way leads to it: what closes it ends it.
	way *os.File
}

func newSpares() *spares { return &spares{sealed: sync.OnceValue(isSealed)} }

// isSealed tells whether this program is in sealed memory, where no container
// can change it. libcontainer copies any other for each container.
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

// fill makes a spare in the background, unless there is one.
func (s *spares) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.making || s.ready != nil || !s.sealed() {
		return
	}
	s.making = true
	s.work.Go(func() {
		made, err := startSpare()
		s.mu.Lock()
		s.making = false
		if err == nil && !s.closed {
			s.ready, made = made, nil
		}
		s.mu.Unlock()
		if err == nil && made != nil {
			made.discard()
		}
	})
}

// take returns the spare, or nil where there is none.
func (s *spares) take() *spare {
	s.mu.Lock()
	one := s.ready
	s.ready = nil
	s.mu.Unlock()
	if one != nil && one.ended() {
		one.close()
		return nil
	}
	return one
}

// close ends the spare. None is made from then on.
func (s *spares) close() {
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

func startSpare() (*spare, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a spare process: %w", err)
	}
	defer unix.Close(pair[1])
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("making a spare process: %w", err)
	}
	defer null.Close()
	one := &spare{way: os.NewFile(uintptr(pair[0]), "spare")}
	one.pid, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "init"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{initial.SpareEnv + "=1", "GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), uintptr(pair[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID, PidFD: &one.pidfd},
	})
	if err != nil {
		one.way.Close()
		return nil, fmt.Errorf("making a spare process: %w", err)
	}
	return one, nil
}

// ended tells whether the process has ended, and reaps it.
func (s *spare) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, s.pidfd, &info, unix.WEXITED|unix.WNOHANG, nil)
	return err != nil || info.Signo != 0
}

// close lets go of a process that is another's now.
func (s *spare) close() {
	s.way.Close()
	unix.Close(s.pidfd)
}

// discard ends and reaps the process, unless that was done already.
func (s *spare) discard() {
	_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0)
	for {
		err := unix.Waitid(unix.P_PIDFD, s.pidfd, nil, unix.WEXITED, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	s.close()
}

// offer makes libcontainer's next process of the container hand over to the
// spare, which is to be in its cgroups then, and to have /proc mounted in the root
// at proc unless that is empty.
func (s *spare) offer(p *libcontainer.Process, c *libcontainer.Container, proc string) error {
	state, err := c.State()
	if err != nil {
		return fmt.Errorf("preparing a spare process: %w", err)
	}
	lines := []string{proc}
	for _, dir := range state.CgroupPaths {
		lines = append(lines, dir)
	}
	if _, err := s.way.WriteString(strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("preparing a spare process: %w", err)
	}
	// Its name is another's, but who gets it is ours.
	p.PidfdSocket = s.way
	return nil
}

// canUseSpare tells whether a spare can become the container's first process:
// it has a PID namespace already, and cannot change users.
func canUseSpare(spec *specs.Spec) bool {
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
