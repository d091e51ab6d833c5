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

// containerState is a container that this process manages: its persistent state, which is also on disk, and what
// exists only in memory, such as its open process.
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

// get returns a copy of the container's persistent state. Its slices and messages are shared and must not be
// modified.
func (c *containerState) get() containerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

// running returns the open process and streams of the container, or nil if it does not run.
func (c *containerState) running() *liveContainer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live
}

// change applies f to a copy of the container's persistent state, writes the copy to disk, and then uses it as the
// state in memory. If the write fails, it returns the error and the state is unchanged. f must not modify slices or
// messages of the state in place.
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

// recordExit applies f, which sets the exit code and time, to the container's persistent state. If the state cannot
// be written to disk, for example because the disk is full, it is changed in memory only, so that callers see the
// exit. After a restart, the runtime detects the exit again, but the exit code is lost and the reason is Unknown.
func (c *containerState) recordExit(log *slog.Logger, f func(*containerRecord)) {
	if err := c.change(f); err != nil {
		log.Error("writing exit of container to its state file failed; the kubelet gets the exit status, but if the container runtime restarts, the exit code is lost and the reason is Unknown: check the disk", "containerID", c.id, "err", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		f(&c.record)
	}
}

// containerName returns the name that identifies a container in requests: it consists of the metadata of the
// container and its pod, including the attempt number. inventory.reserve ensures that no two containers have the
// same name.
func containerName(m *runtimeapi.ContainerMetadata, pod *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), pod.GetName(), pod.GetNamespace(), pod.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

// closeFiles closes the process handle and the streams of a running container when the runtime stops. The container
// keeps running, and the next runtime process opens them again.
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
