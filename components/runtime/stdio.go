//go:build cgo

package runtime

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/logs"
	"hyperkube/components/runtime/pipe"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/process"
)

// closeStdin closes a container's stdin pipe, so the container reads EOF. It also closes the duplicates of attach
// clients, which would keep the pipe open.
func (l *liveContainer) closeStdin() {
	l.stdinMu.Lock()
	defer l.stdinMu.Unlock()
	if l.stdin != nil {
		l.stdin.Close()
		l.stdin = nil
	}
	for in := range l.inputs {
		in.Close()
	}
	l.inputs = nil
}

// closeStreams closes the runtime's ends of the container's pipes and terminal.
func (l *liveContainer) closeStreams() {
	closeAll(l.stdout, l.stderr, l.console)
	l.closeStdin()
}

// closeAll closes files. Nil files are ignored.
func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close() // Close on nil only returns an error
	}
}

// attachStdin returns a duplicate of the container's stdin or terminal for an attach client, or nil if the container
// has neither. Each client has its own file, because closing it interrupts a write that waits for the container to
// read. The caller must pass the result to detachStdin.
func (l *liveContainer) attachStdin() (*os.File, error) {
	l.stdinMu.Lock()
	defer l.stdinMu.Unlock()
	file := l.console
	if file == nil {
		file = l.stdin
	}
	if file == nil {
		return nil, nil
	}
	in, err := duplicate(file)
	if err != nil {
		return nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	if l.inputs == nil {
		l.inputs = map[*os.File]bool{}
	}
	l.inputs[in] = true
	return in, nil
}

// detachStdin closes a file that attachStdin returned, when the client has disconnected. in may be nil.
func (l *liveContainer) detachStdin(in *os.File) {
	if in == nil {
		return
	}
	l.stdinMu.Lock()
	defer l.stdinMu.Unlock()
	delete(l.inputs, in)
	in.Close()
}

// duplicate returns a new file that refers to the same open file as f. Unlike f.Fd, it does not make f blocking.
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

// killHolder kills the holder h, the process that keeps a container's stdin or terminal open across restarts of the
// runtime, and closes h.
func killHolder(h *process.Handle) {
	if err := h.Signal(unix.SIGKILL); err == nil {
		<-h.Done()
	}
	h.Close()
}

// stdioFiles manages what keeps the standard streams of containers working across restarts of the runtime: the
// FIFOs, the logs, the files that buffer output before it is written to the log (spools), and the processes that
// keep terminals and stdin open (holders).
type stdioFiles struct {
	*host
	inventory  *inventory
	background *background
}

// startHolder starts the holder of a container that has a terminal or stdin: a process that keeps it open when this
// process exits. The holder runs in the cgroup of the sandbox pod. id is the container's ID. startHolder sets
// live.holder. It does nothing if the container has neither.
func (sf *stdioFiles) startHolder(id string, pod sandboxRecord, live *liveContainer) error {
	file := live.console
	if file == nil {
		file = live.stdin
	}
	if file == nil {
		return nil
	}
	// Passing the file to the holder makes it blocking here too. It is replaced by a duplicate below.
	h, err := sandbox.StartHolder(sf.pauseProgram(), id, file)
	if err != nil {
		return err
	}
	live.holder = h
	if err := sf.cgroups.AddProcess(sf.sandboxCgroup(pod.config, pod.ID), h.PID()); err != nil {
		return err
	}
	ours, err := sandbox.HeldFile(h)
	if err != nil {
		return err
	}
	file.Close()
	if live.console != nil {
		live.console = ours
	} else {
		live.stdin = ours
	}
	return nil
}

// createFIFO creates the FIFO of a container's stream, unless it exists, and sets its SELinux label. name is the
// stream, such as "stdout".
func (sf *stdioFiles) createFIFO(rec containerRecord, name string) (path string, err error) {
	path = sf.fifo(rec.ID, name)
	err = unix.Mkfifo(path, 0o600)
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err == nil {
		err = sf.selinux.Label(path, rec.Labels)
	}
	if err != nil {
		return "", fmt.Errorf("creating the container's %s: %w", name, err)
	}
	return path, nil
}

// outputFIFO creates the FIFO of a container's output stream and opens the runtime's end (ours) and the container's end
// (theirs). The container's end is also open for reading, so that writing never fails for lack of a reader while no
// runtime runs.
func (sf *stdioFiles) outputFIFO(rec containerRecord, name string) (ours, theirs *os.File, err error) {
	path, err := sf.createFIFO(rec, name)
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

// inputFIFO creates the FIFO of a container's stdin and opens the container's end (theirs) and the runtime's end
// (ours).
func (sf *stdioFiles) inputFIFO(rec containerRecord) (theirs, ours *os.File, err error) {
	path, err := sf.createFIFO(rec, "stdin")
	if err != nil {
		return nil, nil, err
	}
	// Opening a single end would block.
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

// spoolOf returns the file name of the spool of a container's stream: the file that buffers its output before it is
// written to the log.
func spoolOf(stream string) string { return stream + ".spool" }

// openSpool opens the spool of a container's stream: the file that buffers output between the FIFO and the log. fifo is
// the runtime's end of the stream. openSpool returns nil if fifo is nil or the spool cannot be opened. Output is then
// copied directly, and lines are lost if this process is killed while it writes them to the log.
func (sf *stdioFiles) openSpool(c *containerState, log *logs.Log, stream string, fifo *os.File) *logs.Spool {
	if fifo == nil {
		return nil
	}
	spool, err := logs.OpenSpool(sf.fifo(c.id, spoolOf(stream)), log)
	if err != nil {
		sf.log.Warn("opening buffer file for container output failed; output is logged, but if the container runtime is killed, the lines that it is writing are lost", "containerID", c.id, "stream", stream, "err", err)
		return nil
	}
	return spool
}

// keepOutput passes the container's output FIFOs to the pause process of its sandbox, which keeps them open. If this
// process is killed and the container exits, the unread output stays in the FIFOs, and the next runtime process writes
// it to the log. A failure is only logged.
func (sf *stdioFiles) keepOutput(c *containerState) {
	s, err := sf.inventory.findSandbox(c.sandbox)
	if err == nil && s.handle == nil {
		err = process.ErrNotFound
	}
	if err == nil {
		s.keep.Lock()
		err = sandbox.Keep(s.handle, c.id, sf.fifo(c.id, "stdout"), sf.fifo(c.id, "stderr"))
		s.keep.Unlock()
	}
	if err != nil {
		sf.log.Warn("keeping output of container open across restarts of the container runtime failed; its output is logged, but if the container exits while the container runtime is not running, its last output is lost, no retry", "containerID", c.id, "err", err)
	}
}

// releaseOutput removes the output FIFOs and spools of a container and closes the FIFOs in the sandbox's pause process.
// It is called when all output is in the log, or when the container is not started. It does nothing if they do not
// exist.
func (sf *stdioFiles) releaseOutput(c *containerState) {
	if !sf.hasOutput(c) {
		return
	}
	if s, err := sf.inventory.findSandbox(c.sandbox); err == nil && s.handle != nil {
		s.keep.Lock()
		err = sandbox.Release(s.handle, c.id)
		s.keep.Unlock()
		// Nothing is kept by a sandbox that has ended or that an earlier version has started.
		if err != nil && !errors.Is(err, process.ErrNotFound) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EBADF) {
			sf.log.Warn("closing output pipes of container in the pause process of its pod failed; they only use file descriptors until the pod terminates", "containerID", c.id, "err", err)
		}
	}
	for _, name := range []string{spoolOf("stdout"), spoolOf("stderr"), "stderr", "stdout"} {
		if err := os.Remove(sf.fifo(c.id, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			sf.log.Warn("removing output pipe or buffer file of container failed; it only uses disk space, retrying when the kubelet removes the container", "containerID", c.id, "stream", name, "err", err)
		}
	}
}

// hasOutput reports whether the container has output FIFOs, so its output may not be in the log completely.
func (sf *stdioFiles) hasOutput(c *containerState) bool {
	_, err := os.Lstat(sf.fifo(c.id, "stdout"))
	return err == nil
}

// awaitOutput waits until the remaining output of a container whose processes have exited is in its log, and reports
// whether it is. If another process keeps the streams open, it stops reading after drainTimeout. It returns false if
// the log's disk does not respond or the runtime stops; the next runtime process then continues.
func (sf *stdioFiles) awaitOutput(live *liveContainer) bool {
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-live.drained:
		return true
	case <-timer.C:
	case <-sf.background.quit:
		return false
	}
	// Another process keeps the streams open: what was written until now is all.
	for _, f := range []*os.File{live.stdout, live.stderr} {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // a nil file returns an error
	}
	live.console.Close()
	timer.Reset(drainTimeout)
	select {
	case <-live.drained:
		return true
	case <-timer.C: // the log's disk does not respond
		return false
	case <-sf.background.quit:
		return false
	}
}

// drainOutput writes the output that an exited container has left in its FIFOs and spools to its log. It is
// called for an adopted container, because the previous runtime process was stopped or killed before all output
// was written. It does nothing if nothing is left or the machine was rebooted since.
func (sf *stdioFiles) drainOutput(c *containerState) {
	if rec := c.get(); rec.Boot != sf.boot || !sf.hasOutput(c) && !runs(rec.Holder) {
		return
	}
	live := &liveContainer{drained: make(chan struct{})}
	sf.openStreams(c, live)
	sf.carry(c, live)
	if sf.awaitOutput(live) {
		sf.releaseOutput(c)
	}
	live.closeStreams()
	live.log.Close()
	if live.holder != nil {
		killHolder(live.holder)
	}
}

// runs reports whether the process that id identifies still runs. It returns false for the zero id.
func runs(id processID) bool {
	if id.PID == 0 {
		return false
	}
	h, err := process.Open(id.PID, id.Start)
	if err != nil {
		return false
	}
	h.Close()
	return true
}

// openReader opens the reading end of a FIFO in non-blocking mode, so that Go's poller waits for data.
func openReader(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openBlocking opens a FIFO in blocking mode, which the container's processes expect.
func openBlocking(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openStreams opens the log, the holder and the runtime's ends of the streams of an adopted container, and stores them
// in live. A failure is only logged, because the container runs without them too.
func (sf *stdioFiles) openStreams(c *containerState, live *liveContainer) {
	rec := c.get()
	// A container whose log or streams are lost runs all the same.
	complain := func(what string, err error) {
		if err != nil {
			sf.log.Warn("opening log, output or stdin of container after a restart of the container runtime failed; without its log its output is lost, without its output or terminal it blocks when the pipe is full, without its stdin attach cannot send input, retrying at the next start of the container runtime", "containerID", c.id, "stream", what, "err", err)
		}
	}
	var err error
	live.log, err = logs.Open(rec.LogPath, sf.log)
	complain("log", err)
	if rec.Holder.PID != 0 {
		live.holder, err = process.Open(rec.Holder.PID, rec.Holder.Start)
		complain("process that keeps stdin or terminal open", err)
	}
	if live.holder != nil {
		file, err := sandbox.HeldFile(live.holder)
		complain("stdin or terminal", err)
		if rec.config.GetTty() {
			live.console = file
		} else {
			live.stdin = file
		}
	}
	if !rec.config.GetTty() {
		live.stdout, err = openReader(sf.fifo(c.id, "stdout"))
		complain("stdout", err)
		live.stderr, err = openReader(sf.fifo(c.id, "stderr"))
		complain("stderr", err)
	}
}

// carry starts copying the container's output to its log and to attach clients. It closes live.drained when both
// streams are at EOF. It opens the spools first, because they determine how much of their content is already in the
// log.
func (sf *stdioFiles) carry(c *containerState, live *liveContainer) {
	// Both spools are opened before either stream is copied: they find out what is in the log.
	stdout, stderr := sf.openSpool(c, live.log, "stdout", live.stdout), sf.openSpool(c, live.log, "stderr", live.stderr)
	start := func(f *os.File, spool *logs.Spool, stream logs.Stream, hub *logs.Hub) {
		if f == nil {
			return
		}
		live.copies.Add(1)
		sf.background.Go(func() {
			defer live.copies.Done()
			if spool != nil {
				spool.Copy(f, stream, live.log, hub)
			} else {
				logs.Copy(pipe.NewReader(f), stream, live.log, hub)
			}
		})
	}
	start(live.console, nil, logs.Stdout, &live.out)
	start(live.stdout, stdout, logs.Stdout, &live.out)
	start(live.stderr, stderr, logs.Stderr, &live.err)
	go func() {
		live.copies.Wait()
		close(live.drained)
	}()
}
