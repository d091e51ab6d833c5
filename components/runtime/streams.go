//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"hyperkube/components/runtime/logs"
	"hyperkube/internal/serving/gracefulclose"
)

// errSlowWatcher terminates a stream of container events whose client does not read fast enough, see maxEvents. The
// client must list the containers and connect again.
var errSlowWatcher = errors.New("the watcher of container events is too slow")

// streamService implements the CRI calls for exec, attach and port-forward. Exec, Attach and PortForward return URLs of
// an HTTP server of this process. The API server connects to it through the kubelet and exchanges data with the
// container. ExecSync needs no URL.
type streamService struct {
	inventory *inventory
	runner    *streamRunner
	server    streaming.Server
}

// startStreamService starts the HTTP server for exec, attach and port-forward at address. Each request needs a token,
// which the URL of a CRI call contains and which is valid once and for one minute. The server stops when ctx is done.
// The caller must call close.
func startStreamService(ctx context.Context, address string, runner *streamRunner, log *slog.Logger) (*streamService, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("starting streaming server: %w", err)
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr, Path: "/"}
	handler, err := streaming.NewServer(config, runner)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("starting streaming server: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second}
	runner.background.Go(func() {
		<-ctx.Done()
		server.Close()
	})
	runner.background.Go(func() {
		if err := server.Serve(gracefulclose.Listener(listener)); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("streaming server of the container runtime failed; kubectl exec, attach and port-forward do not work on this node: restart the container runtime", "address", address, "err", err)
		}
	})
	return &streamService{inventory: runner.inventory, runner: runner, server: handler}, nil
}

// close releases the resources of the streaming server.
func (ss *streamService) close() { _ = ss.server.Stop() }

// Exec returns a URL at which the client can run a command in a container and use its streams.
func (ss *streamService) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, _, err := ss.runner.runningContainer(req.GetContainerId()); err != nil {
		return nil, err
	}
	return ss.server.GetExec(req)
}

// Attach returns a URL at which the client can use the streams of a container's first process.
func (ss *streamService) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, _, err := ss.runner.runningContainer(req.GetContainerId()); err != nil {
		return nil, err
	}
	return ss.server.GetAttach(req)
}

// PortForward returns a URL at which the client can connect to ports of a pod. It returns an error if the pod does
// not run.
func (ss *streamService) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if s.get().Phase != phaseRunning {
		return nil, fmt.Errorf("sandbox container %q is not running", s.id)
	}
	return ss.server.GetPortForward(req)
}

// streamRunner runs the requests to the streaming server: it connects the streams of clients with containers and pods.
// It implements streaming.Runtime.
type streamRunner struct {
	inventory  *inventory
	engines    *engines
	background *background
}

var _ streaming.Runtime = (*streamRunner)(nil)

// exitError passes the non-zero exit code of an exec command to the streaming server, which sends it to the client.
type exitError struct{ code int }

func (e exitError) Error() string   { return fmt.Sprintf("command terminated with exit code %d", e.code) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return e.code }

// Exec runs cmd in the container with this ID for a client of the streaming server, and returns when it has exited.
// Streams that the client does not use are nil. With tty the command gets a terminal, whose size follows resize. A
// non-zero exit code is returned as exitError.
func (s *streamRunner) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, _, err := s.runningContainer(id)
	if err != nil {
		return err
	}
	req := execRequest{args: cmd, tty: tty, resize: resize}
	if in != nil {
		req.stdin = in
	}
	if out != nil {
		req.stdout = out
	}
	if errs != nil {
		req.stderr = errs
	}
	code, err := s.exec(ctx, c, req)
	if err != nil {
		return fmt.Errorf("failed to exec in container: %w", err)
	}
	if code != 0 {
		return exitError{code}
	}
	return nil
}

// Attach connects a client of the streaming server to the streams of the container's first process: new output is sent
// to out and errs, and input from in is written to stdin. It returns when the container has exited, the client has
// disconnected or the runtime stops. Streams that the client does not use are nil.
func (s *streamRunner) Attach(ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, live, err := s.runningContainer(id)
	if err != nil {
		return err
	}
	config := c.get().config
	over := make(chan struct{})
	defer close(over)
	if resize != nil && live.console != nil {
		go resizeTo(live.console, resize, over)
	}
	var copies sync.WaitGroup
	carry := func(hub *logs.Hub, to io.WriteCloser) {
		if to == nil {
			return
		}
		sub := hub.Subscribe()
		copies.Go(func() {
			defer sub.Close()
			_, _ = io.Copy(to, sub)
		})
		go func() {
			select {
			case <-ctx.Done():
			case <-over:
			}
			sub.Close()
		}()
	}
	carry(&live.out, out)
	if !tty {
		carry(&live.err, errs)
	}
	inputOver := make(chan struct{})
	if in != nil {
		stdin, err := live.attachStdin()
		if err != nil {
			return err
		}
		defer live.detachStdin(stdin)
		go func() {
			defer close(inputOver)
			s.copyStdin(live, stdin, in, config)
		}()
	}
	drained := make(chan struct{})
	go func() {
		copies.Wait()
		close(drained)
	}()
	if out == nil && errs == nil {
		drained = nil
	}
	select {
	case <-drained:
	case <-live.exited:
		if drained != nil {
			<-drained
		}
	case <-ctx.Done():
	case <-s.background.quit:
	case <-receiveIf(in != nil && (out == nil && errs == nil || !tty && !config.GetStdinOnce()), inputOver):
		// A client whose input has ended detaches from a container that keeps stdin open, as with
		// `kubectl run --stdin --leave-stdin-open`.
	}
	return nil
}

// receiveIf returns ch if enabled is true. Otherwise it returns a nil channel, which disables a case of a select
// statement.
func receiveIf(enabled bool, ch <-chan struct{}) <-chan struct{} {
	if enabled {
		return ch
	}
	return nil
}

// copyStdin copies the input of an attach client to a container until the input ends or stdin is closed. stdin is the
// result of liveContainer.attachStdin and may be nil, in which case it does nothing. If config has stdinOnce set, it
// then closes the container's stdin for good.
func (s *streamRunner) copyStdin(live *liveContainer, stdin *os.File, in io.Reader, config *runtimeapi.ContainerConfig) {
	if stdin == nil {
		return
	}
	_, _ = io.Copy(stdin, in)
	if live.console != nil || !config.GetStdinOnce() {
		return
	}
	select {
	case <-s.background.quit: // the container and its stdin outlive this process
		return
	default:
	}
	// With stdinOnce, the container's stdin is closed after the first attach client.
	live.closeStdin()
	if live.holder != nil {
		_ = live.holder.Signal(unix.SIGKILL)
	}
}

// PortForward connects a client of the streaming server to a port on the loopback address of the pod with this sandbox
// ID. It returns when the pod closes the connection or ctx is done.
func (s *streamRunner) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	sandbox, err := s.inventory.findSandbox(id)
	if err != nil {
		return err
	}
	rec := sandbox.get()
	if rec.Phase != phaseRunning || sandbox.handle == nil {
		return fmt.Errorf("sandbox container %q is not running", id)
	}
	conn, err := dialInNetNS(ctx, rec.Process.PID, port)
	if err != nil {
		return fmt.Errorf("failed to execute portforward in network namespace of sandbox %q: %w", id, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// EOF of the client is passed on to the pod. EOF of the pod ends the connection.
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
