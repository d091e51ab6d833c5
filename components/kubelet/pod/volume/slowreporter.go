package volume

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// slowAfter is the delay before the first report that changing the group of a volume takes long, and slowEvery the
// interval between later reports, as in upstream.
const (
	slowAfter = 30 * time.Second
	slowEvery = 60 * time.Second
)

// slowReporter reports slow changes of the group of a volume's files.
type slowReporter struct {
	files atomic.Int64 // number of processed files
	done  chan struct{}
	wait  sync.WaitGroup
}

// newSlowReporter starts a goroutine that calls report with upstream's messages about the volume name, first
// after slowAfter and then every slowEvery. If report is nil, it starts none. The caller must call stop.
func newSlowReporter(name string, report func(message string)) *slowReporter {
	s := &slowReporter{done: make(chan struct{})}
	if report == nil {
		return s
	}
	s.wait.Go(func() {
		timer := time.NewTimer(slowAfter)
		defer timer.Stop()
		for first := true; ; first = false {
			select {
			case <-s.done:
				return
			case <-timer.C:
			}
			report(s.message(name, first))
			timer.Reset(slowEvery)
		}
	})
	return s
}

// message returns upstream's message about the volume name. The first one recommends the policy
// OnRootMismatch, later ones have the number of processed files.
func (s *slowReporter) message(name string, first bool) string {
	if first {
		return fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods", name)
	}
	return fmt.Sprintf("Setting volume ownership for %s, processed %d files.", name, s.files.Load())
}

// stop stops the goroutine and returns when report is no longer running.
func (s *slowReporter) stop() {
	close(s.done)
	s.wait.Wait()
}
