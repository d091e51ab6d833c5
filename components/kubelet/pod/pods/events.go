package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/base/backoff"
)

// exitWaiters has a channel for each client of the kubelet that waits for the exit of a container, for example to
// stop following its log. Its methods are safe for concurrent use. The zero value has no channels.
type exitWaiters struct {
	mu    sync.Mutex
	chans map[string][]chan struct{} // by container ID, closed when the container has exited
}

// add returns a channel that is closed when notify is called for the container ID.
func (e *exitWaiters) add(id string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.chans == nil {
		e.chans = map[string][]chan struct{}{}
	}
	ch := make(chan struct{})
	e.chans[id] = append(e.chans[id], ch)
	return ch
}

// remove removes a channel that add returned for the container ID. A channel that notify has closed is
// ignored.
func (e *exitWaiters) remove(id string, ch <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.chans[id]
	for i := range list {
		if list[i] == ch {
			e.chans[id] = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(e.chans[id]) == 0 {
		delete(e.chans, id)
	}
}

// notify closes and removes all channels of the container ID, because the container has exited or was
// removed.
func (e *exitWaiters) notify(id string) {
	e.mu.Lock()
	list := e.chans[id]
	delete(e.chans, id)
	e.mu.Unlock()
	for _, ch := range list {
		close(ch)
	}
}

// Exited returns a channel that is closed when the container with the ID has exited, or immediately if the
// runtime does not return its state. The caller must call CancelExited when it does not need the channel any
// more.
func (m *Manager) Exited(ctx context.Context, id string) <-chan struct{} {
	ch := m.exits.add(id)
	// It may have exited already.
	if c, err := m.host.CRI.Container(ctx, id); err != nil || c.State == podstate.Exited {
		m.exits.notify(id)
	}
	return ch
}

// CancelExited releases the channel that Exited returned for the container ID.
func (m *Manager) CancelExited(id string, ch <-chan struct{}) { m.exits.remove(id, ch) }

// watchRuntime passes the runtime's events to the workers of pods until ctx is done. When the event stream is
// opened, all workers read the state of their pods, because events may have been missed; the first time, the
// workers are started. A stream that is closed or cannot be opened is opened again with a back-off. A runtime
// without an event stream is polled every second.
func (m *Manager) watchRuntime(ctx context.Context) {
	retry := backoff.Backoff{First: 20 * time.Millisecond, Max: time.Second}
	first := true
	for ctx.Err() == nil {
		err := m.stream(ctx, func() {
			retry.Reset()
			m.relistAll()
			if first {
				m.startAll()
				first = false
			}
		})
		if ctx.Err() != nil {
			return
		}
		if cri.IsUnimplemented(err) {
			m.host.Log.Info("container runtime has no event stream; the kubelet lists its containers every second instead, so that container exits are noticed later")
			if first {
				m.startAll()
			}
			m.poll(ctx)
			return
		}
		m.host.Log.Info("event stream of the container runtime was closed or could not be opened; container exits are noticed when it is open again, and after a start of the kubelet pods are started only then, retrying with back-off", "err", err)
		retry.Pause(ctx)
	}
}

// startAll starts the workers of the pods that Set has added while the runtime's event stream was not open, because
// their events would have been lost. From then on, Set starts workers immediately.
func (m *Manager) startAll() {
	m.mu.Lock()
	m.streamOpen = true
	m.mu.Unlock()
	for _, w := range m.host.Registry.all() {
		m.start(w)
	}
}

// stream dispatches the runtime's events until the stream is closed or ctx is done, and returns why. It calls
// opened when the stream is open.
func (m *Manager) stream(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := m.host.CRI.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	m.host.Metrics.EventStreamOpened(err)
	if err != nil {
		return err
	}
	opened()
	// The runtime does not report when the subscription is active, so list the containers once more
	// to catch earlier events.
	once := time.AfterFunc(time.Second, m.relistAll)
	defer once.Stop()
	for {
		ev, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("closed by the runtime")
		}
		if err != nil {
			return err
		}
		var happened time.Time
		if ev.CreatedAt > 0 {
			happened = time.Unix(0, ev.CreatedAt)
		}
		m.host.Metrics.EventReceived(happened)
		m.dispatch(ev)
	}
}

// dispatch passes an event to the clients that wait for the exit of its container, and to the worker of its
// pod. Events of other pods are ignored.
func (m *Manager) dispatch(ev *runtimeapi.ContainerEventResponse) {
	if ev.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		ev.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		m.exits.notify(ev.ContainerId)
	}
	uid := types.UID(ev.GetPodSandboxStatus().GetMetadata().GetUid())
	if w := m.host.Registry.worker(uid); w != nil {
		w.runtimeEvent(ev.ContainerId, ev.ContainerEventType)
	}
}

// relistAll makes all workers read the state of their pods from the runtime.
func (m *Manager) relistAll() {
	for _, w := range m.host.Registry.all() {
		w.relist()
	}
}

// poll replaces the event stream for runtimes without one, until ctx is done: it lists all sandboxes and
// containers every second, wakes the workers of pods of which one has appeared, disappeared or changed its
// state, and notifies the clients that wait for the exit of a container. A failed list is retried in a second.
func (m *Manager) poll(ctx context.Context) {
	type seen struct {
		uid   string
		state int32
	}
	before := map[string]seen{}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		now, err := m.list(ctx, func(id, uid string, state int32) any { return seen{uid, state} })
		if err != nil {
			m.host.Log.Warn("listing containers of the container runtime failed; exited containers are not noticed until a retry succeeds, retrying in a second", "err", err)
		} else {
			dirty := map[string]bool{}
			after := make(map[string]seen, len(now))
			for id, v := range now {
				s := v.(seen)
				after[id] = s
				if old, ok := before[id]; !ok || old != s {
					dirty[s.uid] = true
				}
				if s.state == int32(runtimeapi.ContainerState_CONTAINER_EXITED) {
					m.exits.notify(id)
				}
			}
			for id, old := range before {
				if _, ok := after[id]; !ok {
					dirty[old.uid] = true
					m.exits.notify(id)
				}
			}
			before = after
			for uid := range dirty {
				if w := m.host.Registry.worker(types.UID(uid)); w != nil {
					w.relist()
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// list lists all sandboxes and containers of the runtime and returns what make_ returns for each of them, by ID.
// uid is the UID of the pod, and state the CRI state; 100 is added to that of sandboxes, so that it differs from
// the states of containers. It returns an error if the runtime fails.
func (m *Manager) list(ctx context.Context, make_ func(id, uid string, state int32) any) (map[string]any, error) {
	out := map[string]any{}
	boxes, err := m.host.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, b := range boxes.Items {
		// Sandbox states are numbered separately and in reverse order.
		out[b.Id] = make_(b.Id, b.Labels[cri.LabelPodUID], 100+int32(b.State))
	}
	containers, err := m.host.CRI.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range containers.Containers {
		out[c.Id] = make_(c.Id, c.Labels[cri.LabelPodUID], int32(c.State))
	}
	return out, nil
}

// runtimeResponseThreshold is how long the runtime may not respond to calls about a pod before the node is not
// ready.
const runtimeResponseThreshold = 3 * time.Minute

// RuntimeUnresponsive returns an error with upstream's text if, for a pod, the runtime has not responded to
// calls for longer than runtimeResponseThreshold before now. The node is then not ready. Otherwise it returns
// nil.
func (r *Registry) RuntimeUnresponsive(now time.Time) error {
	var longest time.Duration
	for _, w := range r.all() {
		w.mu.Lock()
		if !w.fresh.unresponsiveSince.IsZero() {
			longest = max(longest, now.Sub(w.fresh.unresponsiveSince))
		}
		w.mu.Unlock()
	}
	if longest <= runtimeResponseThreshold {
		return nil
	}
	return fmt.Errorf("PLEG is not healthy: pleg was last seen active %v ago; threshold is %v", longest, runtimeResponseThreshold)
}

// Healthy returns an error until the runtime's event stream has been opened for the first time, or the runtime
// has reported that it has none, because no pods are started before. The HTTPS server reports it at /healthz.
func (m *Manager) Healthy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.streamOpen {
		return errors.New("the container runtime has not responded yet")
	}
	return nil
}
