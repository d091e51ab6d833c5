//go:build cgo

package runtime

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxEvents is how many events a watcher may be behind before it is cut off;
// it lists then.
const maxEvents = 4096

// broker passes container events on.
type broker struct {
	mu   sync.Mutex
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
}

func (b *broker) subscribe() chan *runtimeapi.ContainerEventResponse {
	ch := make(chan *runtimeapi.ContainerEventResponse, maxEvents)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[chan *runtimeapi.ContainerEventResponse]struct{}{}
	}
	b.subs[ch] = struct{}{}
	return ch
}

func (b *broker) unsubscribe(ch chan *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, ch)
}

func (b *broker) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) == 0
}

func (b *broker) publish(e *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subs {
		select {
		case ch <- e:
		default:
			delete(b.subs, ch)
			close(ch)
		}
	}
}

// emit tells of an event of a container, or of a sandbox by its id, with the
// state of the whole pod. s is nil when the pod is gone.
func (r *Runtime) emit(id string, kind runtimeapi.ContainerEventType, s *sandboxState) {
	if r.events.idle() {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s != nil {
		rec := s.get()
		e.PodSandboxStatus = sandboxStatus(rec)
		for _, c := range r.containersOf(rec.ID) {
			e.ContainersStatuses = append(e.ContainersStatuses, containerStatus(c.get()))
		}
	}
	r.events.publish(e)
}

// GetContainerEvents streams events from now on.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	ch := r.events.subscribe()
	defer r.events.unsubscribe(ch)
	// The caller knows by the header that it misses nothing from now on.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				return errSlowWatcher
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-r.quit:
			return nil
		}
	}
}
