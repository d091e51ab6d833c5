package shutdown

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"hyperkube/internal/pod/podutil"
)

// defaultPeriods are the grace periods of suspended pods unless others are configured. Their sum bounds the time that
// the shutdown of the machine waits for pods. 30 seconds is the default grace period of a pod.
var defaultPeriods = []Period{{Priority: 0, Grace: 30 * time.Second}, {Priority: podutil.SystemCritical, Grace: 10 * time.Second}}

// suspended is what RunStopJob answers when all pods are suspended.
const suspended = "suspended\n"

// RunStopJob listens on the socket of Config until ctx is done. When a client connects, it suspends all pods: it stops
// their containers in the order of their priorities, and the next start of the kubelet runs the pods again. Then it
// answers. If no socket is configured, it returns immediately.
func (m *Manager) RunStopJob(ctx context.Context) error {
	if m.cfg.StopSocket == "" {
		return nil
	}
	// A killed kubelet leaves its socket behind.
	if err := os.Remove(m.cfg.StopSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the socket of the stop job: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", m.cfg.StopSocket)
	if err != nil {
		return fmt.Errorf("listening for the stop job: %w", err)
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	if err := os.Chmod(m.cfg.StopSocket, 0o600); err != nil {
		l.Close()
		return fmt.Errorf("restricting access to the socket of the stop job: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var once sync.Once
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			l.Close()
			return fmt.Errorf("accepting the stop job: %w", err)
		}
		clients.Go(func() {
			defer conn.Close()
			once.Do(func() { m.suspendPods(ctx) }) // further clients wait for the first
			if ctx.Err() == nil {
				_, _ = conn.Write([]byte(suspended)) // the client may have exited
			}
		})
	}
}

// suspendPods suspends all pods, in the configured grace periods or else defaultPeriods, and marks the node as
// shutting down, so that no pod is admitted any more.
func (m *Manager) suspendPods(ctx context.Context) {
	m.set(true)
	m.cfg.Event("Shutdown", "Shutdown manager detected shutdown event")
	periods := m.cfg.Periods
	if len(periods) == 0 {
		periods = defaultPeriods
	}
	m.terminatePods(ctx, periods, m.cfg.Suspend)
}

// ErrNoKubelet is wrapped by the error of Suspend if no kubelet listens on the socket, or it stops before all
// pods are suspended.
var ErrNoKubelet = errors.New("the kubelet does not run")

// Suspend makes the kubelet that listens on socket suspend all pods, and returns when it has. It returns an
// error that wraps ErrNoKubelet if there is no such kubelet or it stops before, and another error if ctx is
// done.
func Suspend(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoKubelet, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answer, err := bufio.NewReader(conn).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for the kubelet to suspend pods: %w", context.Cause(ctx))
	case err != nil || answer != suspended:
		return fmt.Errorf("%w: it stopped while it suspended pods", ErrNoKubelet)
	}
	return nil
}
