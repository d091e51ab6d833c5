// Package shutdown implements graceful node shutdown: it makes logind delay the shutdown of the
// machine, terminates pods by priority, and then lets the shutdown continue.
//
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
package shutdown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/atomicfile"
)

// Reason and Message are those of pods that are terminated because the machine shuts down, and RefusedReason and
// RefusedMessage those of pods that are rejected during a shutdown, as in upstream.
const (
	Reason  = "Terminated"
	Message = "Pod was terminated in response to imminent node shutdown."

	RefusedReason  = "NodeShutdown"
	RefusedMessage = "Pod was rejected as the node is shutting down."

	// NodeMessage is the message of the Ready condition during a shutdown.
	NodeMessage = "node is shutting down"
)

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	// Periods is the result of the function Periods. If it is empty, logind is not watched, and pods are suspended with
	// default periods.
	Periods []Period
	// StopSocket is the path of the unix socket on which RunStopJob listens; empty for none.
	StopSocket string
	// Connect connects to logind. The default is the function Connect.
	Connect func(context.Context) (Logind, error)
	// LogindConf is the directory of logind's drop-in configuration files. A file is written only
	// if logind's maximum delay is too short. Recorded is called with its path before that; it may
	// be nil.
	LogindConf string
	Recorded   func(path string) error
	// Pods returns the pods that have not terminated. Terminate terminates a pod with a grace period in
	// seconds, and returns a channel that is closed when no process of the pod runs and its volumes are
	// removed.
	Pods      func() []*v1.Pod
	Terminate func(pod *v1.Pod, grace int64) <-chan struct{}
	// Suspend is like Terminate, but the next start of the kubelet runs the pod again. Required with StopSocket.
	Suspend func(pod *v1.Pod, grace int64) <-chan struct{}
	// Changed is called when a shutdown begins or is canceled.
	Changed func()
	// Event emits an event for the node.
	Event func(reason, message string)
	// State is the file that stores the times of the last shutdown.
	State string
	Log   *slog.Logger
}

// Manager delays the shutdown of the machine until it has terminated the pods. Its methods are safe for
// concurrent use.
type Manager struct {
	cfg Config

	mu    sync.Mutex // guards the following fields
	down  bool
	times times
}

// times are the times of the last shutdown: its begin, and when all pods had terminated. Zero means never.
type times struct {
	Start time.Time `json:"startTime"`
	End   time.Time `json:"endTime"`
}

// New returns a Manager, which does nothing before Run. It reads the times of the last shutdown, for metrics, from
// the file at the path cfg.State.
func New(cfg Config) *Manager {
	if cfg.Connect == nil {
		cfg.Connect = Connect
	}
	m := &Manager{cfg: cfg}
	if raw, err := os.ReadFile(cfg.State); err == nil {
		if m.times, err = decode(raw); err != nil {
			cfg.Log.Warn("file with the times of the last node shutdown is damaged and ignored; only the metrics of that shutdown are missing", "file", cfg.State, "err", err)
		}
	}
	return m
}

// decode decodes the JSON file in which record has stored the times of the last shutdown.
func decode(raw []byte) (times, error) {
	var t times
	if err := json.Unmarshal(raw, &t); err != nil {
		return times{}, fmt.Errorf("decoding shutdown record: %w", err)
	}
	return t, nil
}

// Down reports whether the machine is shutting down. It is false if m is nil: graceful shutdown is
// disabled.
func (m *Manager) Down() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// NotReadyReason returns why the node is not ready, or "" if the machine is not shutting down. m may be
// nil.
func (m *Manager) NotReadyReason() string {
	if m.Down() {
		return NodeMessage
	}
	return ""
}

// Times returns when the last shutdown began and when all pods had terminated, for metrics. The zero time
// means never.
func (m *Manager) Times() (start, end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.times.Start, m.times.End
}

// minReconnectBackoff is the initial back-off before logind is connected again. It doubles with each failure.
const minReconnectBackoff = time.Second

// Run handles shutdowns of the machine until ctx is done. Without logind, and after its connection is closed,
// it connects again with a back-off; until then a shutdown of the machine is not delayed. It returns
// immediately if no grace periods are configured. The error is always nil.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.cfg.Periods) == 0 {
		return nil
	}
	retry := backoff.Backoff{First: minReconnectBackoff, Max: time.Minute}
	for {
		began := time.Now()
		err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			retry.Reset()
		}
		pause := retry.Next()
		m.cfg.Log.Warn("watching systemd-logind for node shutdowns failed; until a retry succeeds, a shutdown of the machine kills pods without grace period", "err", err, "retryIn", pause)
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
	}
}

// watch connects to logind, takes the inhibitor lock, and handles shutdowns until ctx is done or the
// connection fails. A shutdown continues when the pods have terminated and the lock is released.
func (m *Manager) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	login, err := m.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	defer login.Close()
	if err := m.extendDelay(ctx, login); err != nil {
		return err
	}
	// Subscribe before taking the lock, so that no event is lost.
	events, err := login.Events(ctx)
	if err != nil {
		return err
	}
	lock, err := login.Inhibit(ctx)
	if err != nil {
		return err
	}
	defer func() { release(lock) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case begins, ok := <-events:
			if !ok {
				return errors.New("connection to logind closed")
			}
			m.set(begins)
			if begins {
				m.cfg.Event("Shutdown", "Shutdown manager detected shutdown event")
				m.terminatePods(ctx, m.cfg.Periods, m.cfg.Terminate)
				release(lock)
				lock = nil
				continue
			}
			m.cfg.Event("Shutdown", "Shutdown manager detected shutdown cancellation")
			if lock == nil {
				if lock, err = login.Inhibit(ctx); err != nil {
					return err
				}
			}
		}
	}
}

// release releases the inhibitor lock, which may be nil.
func release(lock io.Closer) {
	if lock != nil {
		_ = lock.Close()
	}
}

// set records whether the machine is shutting down, which Down returns, and requests an update of the Node status,
// because the node is not ready during a shutdown.
func (m *Manager) set(down bool) {
	m.mu.Lock()
	m.down = down
	m.mu.Unlock()
	m.cfg.Changed()
}

// extendDelay increases logind's maximum delay by a drop-in configuration file if it is shorter than the
// grace periods. It returns an error if logind does not accept the delay.
func (m *Manager) extendDelay(ctx context.Context, login Logind) error {
	have, err := login.Delay(ctx)
	if err != nil {
		return err
	}
	want := total(m.cfg.Periods)
	if want <= have {
		return nil
	}
	path := filepath.Join(m.cfg.LogindConf, "99-kubelet.conf")
	if m.cfg.Recorded != nil {
		if err := m.cfg.Recorded(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.cfg.LogindConf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("unable to override inhibit delay by shutdown manager: %w", err)
	}
	text := fmt.Sprintf("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=%.0f\n", want.Seconds())
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: []byte(text), Mode: 0o644}); err != nil {
		return fmt.Errorf("unable to override inhibit delay by shutdown manager: %w", err)
	}
	if err := login.Reload(ctx); err != nil {
		return err
	}
	if have, err = login.Delay(ctx); err != nil {
		return err
	}
	if want > have {
		return fmt.Errorf("node shutdown manager was unable to update logind InhibitDelayMaxSec to %v (ShutdownGracePeriod), current value of InhibitDelayMaxSec (%v) is less than requested ShutdownGracePeriod", want, have)
	}
	return nil
}

// terminatePods terminates all pods with the function terminate, group by group, the lowest priority first. It waits
// for each group until its pods have terminated or its grace period has passed. It returns early when ctx is done.
func (m *Manager) terminatePods(ctx context.Context, periods []Period, terminate func(pod *v1.Pod, grace int64) <-chan struct{}) {
	m.record(times{Start: time.Now()})
	for i, group := range groups(periods, m.cfg.Pods()) {
		if len(group) == 0 {
			continue
		}
		grace := int64(periods[i].Grace / time.Second)
		m.cfg.Log.Info("terminating pods for node shutdown", "pods", len(group), "priority", periods[i].Priority, "gracePeriodSeconds", grace)
		var ended []<-chan struct{}
		for _, pod := range group {
			g := grace
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				g = min(g, *own)
			}
			ended = append(ended, terminate(pod, g))
		}
		late := time.NewTimer(periods[i].Grace)
	group:
		for _, done := range ended {
			select {
			case <-done:
			case <-late.C:
				m.cfg.Log.Warn("pods of this priority did not terminate within their grace period of the node shutdown; the shutdown continues without waiting for them", "priority", periods[i].Priority, "gracePeriodSeconds", grace)
				break group
			case <-ctx.Done():
				break group
			}
		}
		late.Stop()
		if ctx.Err() != nil {
			return
		}
	}
	start, _ := m.Times()
	m.record(times{Start: start, End: time.Now()})
}

// record stores the times of a shutdown, and writes them to the file at the path cfg.State, from which the next
// kubelet reads them for its metrics. An error is only logged.
func (m *Manager) record(t times) {
	m.mu.Lock()
	m.times = t
	m.mu.Unlock()
	raw, err := json.Marshal(t)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: m.cfg.State, Data: raw, Mode: 0o600})
	}
	if err != nil {
		m.cfg.Log.Warn("writing times of the node shutdown to a file failed; only the metrics of this shutdown are missing after a restart of the kubelet", "file", m.cfg.State, "err", err)
	}
}
