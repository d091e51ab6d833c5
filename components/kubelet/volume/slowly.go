package volume

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// When it is told that giving a volume to a group takes long, and how often it is
// told how far that is; upstream's.
const (
	slowAfter = 30 * time.Second
	slowEvery = 60 * time.Second
)

// slowly tells of work on a volume's files that takes long.
type slowly struct {
	files atomic.Int64 // that are done
	done  chan struct{}
	wait  sync.WaitGroup
}

// newSlowly begins to watch; tell may be nil. The caller calls stop.
func newSlowly(name string, tell func(message string)) *slowly {
	s := &slowly{done: make(chan struct{})}
	if tell == nil {
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
			tell(s.message(name, first))
			timer.Reset(slowEvery)
		}
	})
	return s
}

func (s *slowly) message(name string, first bool) string {
	if first {
		return fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods", name)
	}
	return fmt.Sprintf("Setting volume ownership for %s, processed %d files.", name, s.files.Load())
}

// stop returns when nothing is told any more.
func (s *slowly) stop() {
	close(s.done)
	s.wait.Wait()
}
