//go:build cgo

package runtime

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxEvents is the length of a watcher's event queue. A watcher whose queue is full is disconnected
// and must list again.
const maxEvents = 4096

// broker broadcasts container events.
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

// eventService streams the events of sandboxes and containers to CRI clients.
type eventService struct {
	broker
	inventory  *inventory
	background *background
}

// emit broadcasts an event of a container or sandbox with the status of its pod. s is nil if the
// sandbox was deleted.
func (es *eventService) emit(id string, kind runtimeapi.ContainerEventType, s *sandboxState) {
	if es.idle() {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s != nil {
		rec := s.get()
		e.PodSandboxStatus = sandboxStatus(rec)
		for _, c := range es.inventory.containersOf(rec.ID) {
			e.ContainersStatuses = append(e.ContainersStatuses, containerStatus(c.get()))
		}
	}
	es.publish(e)
}

// GetContainerEvents streams events, starting now.
func (es *eventService) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	ch := es.subscribe()
	defer es.unsubscribe(ch)
	// The header signals the client that all events from now on are delivered.
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
		case <-es.background.quit:
			return nil
		}
	}
}
