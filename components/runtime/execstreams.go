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
)

// execRequest is a command and its streams; nil ones are not wanted.
type execRequest struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	tty            bool
	resize         <-chan remotecommand.TerminalSize
}

// execStreams carry what a command in a container reads and writes: by pipes, or by
// the console of a command with a terminal.
type execStreams struct {
	req           execRequest
	child         container.IO // the command's ends
	in, out, errs *os.File     // ours
	copies        sync.WaitGroup
}

// openExecStreams makes the pipes. Close is the caller's to call.
func openExecStreams(req execRequest) (*execStreams, error) {
	s := &execStreams{req: req}
	if req.tty {
		return s, nil
	}
	pipe := func(read, write **os.File) (err error) {
		if *read, *write, err = os.Pipe(); err != nil {
			s.Close()
			return fmt.Errorf("making a pipe: %w", err)
		}
		return nil
	}
	if req.stdin != nil {
		if err := pipe(&s.child.Stdin, &s.in); err != nil {
			return nil, err
		}
	}
	if err := pipe(&s.out, &s.child.Stdout); err != nil {
		return nil, err
	}
	if err := pipe(&s.errs, &s.child.Stderr); err != nil {
		return nil, err
	}
	return s, nil
}

// begin carries the streams of the command, which has its ends now, and its console
// if it has a terminal.
func (s *execStreams) begin(console *os.File) {
	s.closeChild()
	if console != nil {
		s.in, s.out = console, console
	}
	s.carry(s.out, s.req.stdout)
	s.carry(s.errs, s.req.stderr)
	if s.req.stdin == nil || s.in == nil {
		return
	}
	in := s.in
	// It ends when the caller's stream does; nobody waits for it.
	go func() {
		_, _ = io.Copy(in, s.req.stdin)
		if !s.req.tty {
			in.Close()
		}
	}()
}

func (s *execStreams) carry(from *os.File, to io.Writer) {
	if from == nil {
		return
	}
	if to == nil {
		to = io.Discard
	}
	s.copies.Go(func() { _, _ = io.Copy(to, from) })
}

// drain waits until all is carried that the command has written. What it left running
// may keep the streams open: that is not waited for long, nor after ctx.
func (s *execStreams) drain(ctx context.Context) {
	drained := make(chan struct{})
	go func() {
		s.copies.Wait()
		close(drained)
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *execStreams) closeChild() {
	for _, f := range []*os.File{s.child.Stdin, s.child.Stdout, s.child.Stderr} {
		f.Close() // of nil an error and nothing else
	}
}

// Close ends all that is carried.
func (s *execStreams) Close() {
	s.closeChild()
	for _, f := range []*os.File{s.in, s.out, s.errs} {
		f.Close()
	}
}
