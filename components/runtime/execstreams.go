//go:build cgo

package runtime

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/pipe"
)

// execRequest is a command to run in a container and the client's streams for it. A nil stream is not connected. With
// tty, stdout receives all output of the terminal and stderr is not used.
type execRequest struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	tty            bool
	resize         <-chan remotecommand.TerminalSize
}

// execStreams copies data between the client's streams of an exec request and the command, through pipes or the
// command's terminal. Call openExecStreams, start the command with child, then call start, drain and Close.
type execStreams struct {
	req           execRequest
	child         container.IO // the command's ends
	in, out, errs *os.File     // the runtime's ends
	copies        sync.WaitGroup
}

// openExecStreams creates the pipes for a command. With a terminal it creates none, because the command's terminal is
// passed to start. The caller must call Close.
func openExecStreams(req execRequest) (*execStreams, error) {
	s := &execStreams{req: req}
	if req.tty {
		return s, nil
	}
	connect := func(read, write **os.File) (err error) {
		if *read, *write, err = os.Pipe(); err != nil {
			s.Close()
			return fmt.Errorf("creating pipe: %w", err)
		}
		return nil
	}
	if req.stdin != nil {
		if err := connect(&s.child.Stdin, &s.in); err != nil {
			return nil, err
		}
	}
	if err := connect(&s.out, &s.child.Stdout); err != nil {
		return nil, err
	}
	if err := connect(&s.errs, &s.child.Stderr); err != nil {
		return nil, err
	}
	return s, nil
}

// start starts copying after the command was started. console is the command's terminal, or nil if it has none. start
// closes the runtime's copies of the command's pipe ends, so that the copies end when the command exits.
func (s *execStreams) start(console *os.File) {
	s.closeChild()
	if console != nil {
		s.in, s.out = console, console
	}
	s.copyStream(s.out, s.req.stdout)
	s.copyStream(s.errs, s.req.stderr)
	if s.req.stdin == nil || s.in == nil {
		return
	}
	in := s.in
	// It returns when the caller's stream ends; drain does not wait for it.
	go func() {
		_, _ = io.Copy(in, s.req.stdin)
		if !s.req.tty {
			in.Close()
		}
	}()
}

// copyStream copies from the command's output to the client in a goroutine. If to is nil, the output is discarded so
// that the command does not block.
func (s *execStreams) copyStream(from *os.File, to io.Writer) {
	if from == nil {
		return
	}
	if to == nil {
		to = io.Discard
	}
	s.copies.Go(func() { _, _ = io.Copy(to, pipe.NewReader(from)) })
}

// stallTimeout bounds the wait for a client that does not read the remaining output of its command.
const stallTimeout = 30 * time.Second

// drain waits until all output of the command, which has exited, is copied. Background processes that it started may
// keep the streams open. So after drainTimeout, only what the streams contain then is copied: on a busy machine, the
// copies may not have begun yet. The wait ends after stallTimeout, or when ctx is done.
func (s *execStreams) drain(ctx context.Context) {
	drained := make(chan struct{})
	go func() {
		s.copies.Wait()
		close(drained)
	}()
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-drained:
		return
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	for _, f := range []*os.File{s.out, s.errs} {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // a nil file returns an error
	}
	timer.Reset(stallTimeout)
	select {
	case <-drained:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// closeChild closes the ends of the pipes and of the terminal that the process in the container uses.
func (s *execStreams) closeChild() {
	for _, f := range []*os.File{s.child.Stdin, s.child.Stdout, s.child.Stderr} {
		f.Close() // Close on nil only returns an error
	}
}

// Close closes all pipes and the terminal, which stops the copies.
func (s *execStreams) Close() {
	s.closeChild()
	for _, f := range []*os.File{s.in, s.out, s.errs} {
		f.Close()
	}
}
