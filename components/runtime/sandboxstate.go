//go:build cgo

package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/host/process"
)

// sandboxState is a sandbox that this process manages: its persistent state, which is also on disk, and what exists
// only in memory, such as the handle of its pause process.
type sandboxState struct {
	id  string
	dir string // of its files and its record
	// lifecycleMu is locked while the sandbox is created, stopped or removed.
	lifecycleMu sync.Mutex
	// keep is held during calls of sandbox.Keep and sandbox.Release for the pause process, because
	// they must not overlap.
	keep sync.Mutex

	mu     sync.Mutex // guards the fields below
	record sandboxRecord
	// stopping is true while the sandbox is being stopped. No container may be started then.
	stopping bool
	cpu      cpuSample
	// handle is the sandbox's pause process, or nil if the process had exited when the sandbox was
	// adopted. It is set before the sandbox is visible to other goroutines, so reading it needs no lock.
	handle *process.Handle
}

// get returns a copy of the sandbox's persistent state. Its slices and messages are shared and must not be
// modified.
func (s *sandboxState) get() sandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// setStopping sets whether the sandbox is being stopped. While it is, no container can be started in it.
func (s *sandboxState) setStopping(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = yes
}

// acceptsContainers reports whether containers may be started in the sandbox.
func (s *sandboxState) acceptsContainers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Phase == phaseRunning && !s.stopping
}

// change applies f to a copy of the sandbox's persistent state, writes the copy to disk, and then uses it as the
// state in memory. If the write fails, it returns the error and the state is unchanged. f must not modify slices or
// messages of the state in place.
func (s *sandboxState) change(f func(*sandboxRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.record
	f(&next)
	if err := save(s.dir, &next); err != nil {
		return err
	}
	s.record = next
	return nil
}

// recordExit applies f to the sandbox's persistent state after the sandbox has terminated. If the state cannot be
// written to disk, for example because the disk is full, it is changed in memory only, so that the sandbox can be
// removed. After a restart, the runtime detects the termination again.
func (s *sandboxState) recordExit(log *slog.Logger, f func(*sandboxRecord)) {
	if err := s.change(f); err != nil {
		if !errors.Is(err, os.ErrNotExist) { // it was removed in the meantime
			log.Error("writing termination of pod sandbox to its state file failed; nothing is affected now, a restarted container runtime detects the termination again: check the disk", "podSandboxID", s.id, "err", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f(&s.record)
	}
}

// sandboxName returns the name that identifies a sandbox in requests: it consists of the metadata of the pod,
// including the attempt number. inventory.reserve ensures that no two sandboxes have the same name.
func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), m.GetNamespace(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}
