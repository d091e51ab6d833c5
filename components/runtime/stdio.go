//go:build cgo

package runtime

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/process"
)

// closeStdin ends a container's input, also for those who are attached.
func (l *liveContainer) closeStdin() {
	l.inMu.Lock()
	defer l.inMu.Unlock()
	if l.stdin != nil {
		l.stdin.Close()
		l.stdin = nil
	}
	for own := range l.inputs {
		own.Close()
	}
	l.inputs = nil
}

// closeStreams closes this side of all of the container's streams.
func (l *liveContainer) closeStreams() {
	closeAll(l.stdout, l.stderr, l.console)
	l.closeStdin()
}

// closeAll closes files, of which any may be nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close() // of nil no more than an error
	}
}

// input is a way into the container for one who is attached, nil if it takes no input:
// when that is closed, a write ends that waits for the container to read. It must be
// given to leave.
func (l *liveContainer) input() (*os.File, error) {
	l.inMu.Lock()
	defer l.inMu.Unlock()
	file := l.console
	if file == nil {
		file = l.stdin
	}
	if file == nil {
		return nil, nil
	}
	own, err := duplicate(file)
	if err != nil {
		return nil, fmt.Errorf("opening a container's input: %w", err)
	}
	if l.inputs == nil {
		l.inputs = map[*os.File]bool{}
	}
	l.inputs[own] = true
	return own, nil
}

// leave closes what input returned.
func (l *liveContainer) leave(own *os.File) {
	if own == nil {
		return
	}
	l.inMu.Lock()
	defer l.inMu.Unlock()
	delete(l.inputs, own)
	own.Close()
}

// duplicate opens another descriptor of a file.
func duplicate(f *os.File) (*os.File, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	if err := conn.Control(func(of uintptr) { fd, failed = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// endHolder ends a holder process, which closes what it held.
func endHolder(h *process.Handle) {
	if err := h.Signal(unix.SIGKILL); err == nil {
		<-h.Done()
	}
	h.Close()
}

func (r *Runtime) fifo(id, name string) string { return r.state("containers", id, name) }

// hold starts a process that keeps terminal or stdin open beyond ours.
func (r *Runtime) hold(pod sandboxRecord, live *liveContainer) error {
	file := live.console
	if file == nil {
		file = live.stdin
	}
	if file == nil {
		return nil
	}
	// Passing it on makes it blocking for everybody, so we take it back.
	h, err := sandbox.Hold(r.pauseProgram(), pod.ID, file)
	if err != nil {
		return err
	}
	live.holder = h
	if err := r.cgroups.Enter(r.sandboxCgroup(pod.config, pod.ID), h.PID()); err != nil {
		return err
	}
	mine, err := sandbox.Held(h)
	if err != nil {
		return err
	}
	file.Close()
	if live.console != nil {
		live.console = mine
	} else {
		live.stdin = mine
	}
	return nil
}

// makeFIFO makes a FIFO that the container may use, unless it is there.
func (r *Runtime) makeFIFO(rec containerRecord, name string) (path string, err error) {
	path = r.fifo(rec.ID, name)
	err = unix.Mkfifo(path, 0o600)
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err == nil {
		err = r.selinux.Label(path, rec.Labels)
	}
	if err != nil {
		return "", fmt.Errorf("making the container's %s: %w", name, err)
	}
	return path, nil
}

// outputFIFO makes a FIFO and opens both ends: ours, and the container's,
// which reads too so that it never has nobody to write to.
func (r *Runtime) outputFIFO(rec containerRecord, name string) (ours, theirs *os.File, err error) {
	path, err := r.makeFIFO(rec, name)
	if err != nil {
		return nil, nil, err
	}
	if ours, err = openReader(path); err != nil {
		return nil, nil, fmt.Errorf("opening the container's %s: %w", name, err)
	}
	if theirs, err = openBlocking(path, unix.O_RDWR); err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("opening the container's %s: %w", name, err)
	}
	return ours, theirs, nil
}

// inputFIFO makes a FIFO for stdin and opens both ends.
func (r *Runtime) inputFIFO(rec containerRecord) (theirs, ours *os.File, err error) {
	path, err := r.makeFIFO(rec, "stdin")
	if err != nil {
		return nil, nil, err
	}
	// Opening one end alone would block.
	both, err := openBlocking(path, unix.O_RDWR)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	defer both.Close()
	if theirs, err = openBlocking(path, unix.O_RDONLY); err != nil {
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	if ours, err = openBlocking(path, unix.O_WRONLY); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	return theirs, ours, nil
}

func openReader(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openBlocking(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
