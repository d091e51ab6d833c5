//go:build cgo

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"hyperkube/components/runtime/container"
)

// maxOutput is the maximum number of bytes that ExecSync returns of stdout and of stderr; more output is discarded.
// Both must fit in one gRPC message of maxMessage bytes.
const maxOutput = 7 << 20

// limitedBuffer is a writer that keeps the first maxOutput bytes and discards the others without an error. It is safe
// for concurrent use.
type limitedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p[:min(len(p), maxOutput-l.buf.Len())])
	return len(p), nil
}

func (l *limitedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.buf.Bytes())
}

// runningContainer returns the container with this ID and its open process for exec and attach. It returns an error if
// the container does not exist or does not run.
func (s *streamRunner) runningContainer(id string) (*containerState, *liveContainer, error) {
	c, err := s.inventory.findContainer(id)
	if err != nil {
		return nil, nil, err
	}
	live := c.running()
	if live == nil {
		return nil, nil, fmt.Errorf("container is in %s state", containerPhase(c.get().Phase))
	}
	return c, live, nil
}

// ExecSync runs a command in a container, for example an exec probe, and returns its output and exit code. A
// command that exceeds the timeout is killed, and the error has the code DeadlineExceeded. A timeout of 0 means
// none.
func (ss *streamService) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, errors.New("failed to exec in container: no command")
	}
	c, _, err := ss.runner.runningContainer(req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("failed to exec in container: %w", err)
	}
	if t := req.GetTimeout(); t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(t)*time.Second)
		defer cancel()
	}
	var stdout, stderr limitedBuffer
	code, err := ss.runner.exec(ctx, c, execRequest{args: req.GetCmd(), stdout: &stdout, stderr: &stderr})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %ds exceeded: context deadline exceeded", req.GetTimeout())
	}
	if err != nil {
		return nil, fmt.Errorf("failed to exec in container: %w", err)
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout.bytes(), Stderr: stderr.bytes(), ExitCode: int32(code)}, nil
}

// exec runs a command in a container and returns its exit code when it has exited. The command is killed when ctx is
// done. If the runtime stops, exec returns an error and the command keeps running.
func (s *streamRunner) exec(ctx context.Context, c *containerState, req execRequest) (int, error) {
	streams, err := openExecStreams(req)
	if err != nil {
		return 0, err
	}
	defer streams.Close()
	p, err := s.engines.of(c.get()).Exec(c.id, container.ExecOptions{Args: req.args, Terminal: req.tty, IO: streams.child})
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	streams.start(p.Console)
	over := make(chan struct{})
	defer close(over)
	if req.resize != nil && p.Console != nil {
		go resizeTo(p.Console, req.resize, over)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		_ = p.Signal(unix.SIGKILL)
		<-p.Done()
		return 0, ctx.Err()
	case <-s.background.quit:
		return 0, errors.New("the container runtime is stopping")
	}
	streams.drain(ctx)
	return p.Status().Code, nil
}

// resizeTo applies the terminal sizes that a client sends to console, until over or sizes is closed.
func resizeTo(console *os.File, sizes <-chan remotecommand.TerminalSize, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = container.Resize(console, size.Width, size.Height)
		}
	}
}
