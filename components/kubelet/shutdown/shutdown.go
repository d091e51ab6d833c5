// Package shutdown ends pods in good order when the machine shuts down: it makes
// logind wait, ends pods by their priority, and lets the machine go.
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

	"hyperkube/internal/atomicfile"
	"hyperkube/internal/lifecycle"
)

// What pods and the node say of it.
const (
	Reason  = "Terminated"
	Message = "Pod was terminated in response to imminent node shutdown."

	RefusedReason  = "NodeShutdown"
	RefusedMessage = "Pod was rejected as the node is shutting down."

	// NodeMessage is why the node is not ready then.
	NodeMessage = "node is shutting down"
)

// Config of a Manager. All fields must be filled but those that say otherwise.
type Config struct {
	// Periods are those of package function Periods; not empty.
	Periods []Period
	// Connect connects with logind; nil is package function Connect.
	Connect func(context.Context) (Logind, error)
	// LogindConf is the folder of what overrides logind's configuration. Nothing
	// is written there while logind waits long enough as it is; Recorded is
	// called with the file's path before that, and may be nil.
	LogindConf string
	Recorded   func(path string) error
	// Pods returns the pods that have not ended; End ends one with so many
	// seconds of grace, and returns what is closed once nothing of it runs and
	// its volumes are gone.
	Pods func() []*v1.Pod
	End  func(pod *v1.Pod, grace int64) <-chan struct{}
	// Changed is called when the node begins to shut down or does not any more.
	Changed func()
	// Event tells the node's users.
	Event func(reason, message string)
	// State is the file that remembers when the machine last shut down.
	State string
	Log   *slog.Logger
}

// Manager waits for the machine's shutdown. Its methods are safe for several
// goroutines.
type Manager struct {
	cfg Config

	mu    sync.Mutex // guards what follows
	down  bool
	times times
}

// times of the last shutdown.
type times struct {
	Start time.Time `json:"startTime"`
	End   time.Time `json:"endTime"`
}

// New makes a Manager.
func New(cfg Config) *Manager {
	if cfg.Connect == nil {
		cfg.Connect = Connect
	}
	m := &Manager{cfg: cfg}
	if raw, err := os.ReadFile(cfg.State); err == nil {
		if m.times, err = decode(raw); err != nil {
			cfg.Log.Warn("the record of the last shutdown is not readable", "error", err)
		}
	}
	return m
}

func decode(raw []byte) (times, error) {
	var t times
	if err := json.Unmarshal(raw, &t); err != nil {
		return times{}, fmt.Errorf("decoding the record of a shutdown: %w", err)
	}
	return t, nil
}

// Down tells whether the machine is shutting down.
func (m *Manager) Down() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// Times are when the last shutdown began and when all pods had ended; zero for
// never.
func (m *Manager) Times() (start, end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.times.Start, m.times.End
}

// reconnect is how long after the end of a connection another is made; it is
// doubled each time in vain.
const reconnect = time.Second

// Run waits for shutdowns until ctx ends. A machine without logind is none of
// its failures.
func (m *Manager) Run(ctx context.Context) error {
	pause := reconnect
	for {
		began := time.Now()
		err := m.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause = reconnect
		}
		m.cfg.Log.Warn("the machine's shutdown cannot be waited for, trying again", "error", err, "in", pause)
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
		pause = min(2*pause, time.Minute)
	}
}

// follow keeps one connection.
func (m *Manager) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	login, err := m.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	defer login.Close()
	if err := m.extend(ctx, login); err != nil {
		return err
	}
	// The events first, so that none is lost between the two.
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
				return errors.New("logind's connection ended")
			}
			m.set(begins)
			if begins {
				m.cfg.Event("Shutdown", "Shutdown manager detected shutdown event")
				m.end(ctx)
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

func release(lock io.Closer) {
	if lock != nil {
		_ = lock.Close()
	}
}

func (m *Manager) set(down bool) {
	m.mu.Lock()
	m.down = down
	m.mu.Unlock()
	m.cfg.Changed()
}

// extend makes logind wait long enough.
func (m *Manager) extend(ctx context.Context, login Logind) error {
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

// end ends all pods, group by group.
func (m *Manager) end(ctx context.Context) {
	m.record(times{Start: time.Now()})
	for i, group := range groups(m.cfg.Periods, m.cfg.Pods()) {
		if len(group) == 0 {
			continue
		}
		grace := int64(m.cfg.Periods[i].Grace / time.Second)
		m.cfg.Log.Info("ending pods, for the machine shuts down", "pods", len(group), "priority", m.cfg.Periods[i].Priority, "grace", grace)
		var ended []<-chan struct{}
		for _, pod := range group {
			g := grace
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				g = min(g, *own)
			}
			ended = append(ended, m.cfg.End(pod, g))
		}
		late := time.NewTimer(m.cfg.Periods[i].Grace)
	group:
		for _, done := range ended {
			select {
			case <-done:
			case <-late.C:
				m.cfg.Log.Warn("pods have not ended in the time that a shutdown gives them", "priority", m.cfg.Periods[i].Priority)
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

// record remembers when it was.
func (m *Manager) record(t times) {
	m.mu.Lock()
	m.times = t
	m.mu.Unlock()
	raw, err := json.Marshal(t)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: m.cfg.State, Data: raw, Mode: 0o600})
	}
	if err != nil {
		m.cfg.Log.Warn("recording a shutdown failed", "error", err)
	}
}
