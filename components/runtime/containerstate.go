//go:build cgo

package runtime

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerState is a container that this process manages.
type containerState struct {
	id, sandbox string
	dir         string // of its files and its record

	// lifecycleMu is locked while the container is started, stopped or removed.
	lifecycleMu sync.Mutex
	diskUsage   diskSample

	mu     sync.Mutex // guards the fields below
	record containerRecord
	// spec is kept from creation to start. It is nil after a restart of the runtime, which builds
	// it again.
	spec *specs.Spec
	live *liveContainer // nil unless it runs
	cpu  cpuSample
}

func (c *containerState) get() containerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

func (c *containerState) running() *liveContainer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live
}

// change changes the record, on disk first.
func (c *containerState) change(f func(*containerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.record
	f(&next)
	if err := save(c.dir, &next); err != nil {
		return err
	}
	c.record = next
	return nil
}

// recordExit updates the record after the container has exited. If the record cannot be written,
// for example because the disk is full, it is updated in memory only, so that callers see the exit.
// After a restart, the runtime detects the exit again.
func (c *containerState) recordExit(log *slog.Logger, f func(*containerRecord)) {
	if err := c.change(f); err != nil {
		log.Error("writing container exit to its record failed, keeping it in memory only", "containerID", c.id, "err", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		f(&c.record)
	}
}

func containerName(m *runtimeapi.ContainerMetadata, pod *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), pod.GetName(), pod.GetNamespace(), pod.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

// closeFiles closes all files of a container that keeps running without this process.
func (c *containerState) closeFiles() {
	live := c.running()
	if live == nil {
		return
	}
	live.handle.Close()
	live.closeStreams()
	if live.holder != nil {
		live.holder.Close()
	}
}
