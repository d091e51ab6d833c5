//go:build cgo

package runtime

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxEvents is the number of container events that are queued for a client of GetContainerEvents. If the queue is full,
// the client is disconnected and must list the containers again.
const maxEvents = 4096

// broker broadcasts container events to the clients of GetContainerEvents. The zero value is ready to use. Its methods
// are safe for concurrent use.
type broker struct {
	mu   sync.Mutex
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
}

// subscribe returns a channel that receives all events from now on. It is closed if the subscriber is too slow.
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

// idle reports whether there are no subscribers, so an event need not be built.
func (b *broker) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) == 0
}

// publish sends an event to all subscribers. It never blocks: subscribers with a full queue are disconnected.
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

// eventService implements the CRI call that streams the events of sandboxes and containers.
type eventService struct {
	broker
	inventory  *inventory
	background *background
}

// emit broadcasts an event of the container or sandbox with this ID to the clients of GetContainerEvents. The event
// contains the status of the pod and its containers. s is the sandbox of the pod, or nil if it was deleted; the event
// then has no status. Without clients, emit does nothing.
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

// GetContainerEvents sends all container events from now on to the client, until the client disconnects or the runtime
// stops. It returns an error if the client is too slow.
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
