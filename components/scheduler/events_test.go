package scheduler

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// gate is a sink that blocks events until the test releases them.
type gate struct {
	events.EventSink
	through chan struct{}

	mu      sync.Mutex
	inside  int
	written []string
}

func (g *gate) Create(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	g.mu.Lock()
	g.inside++
	g.mu.Unlock()
	<-g.through
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.written = append(g.written, event.Name)
	return event, nil
}

func (g *gate) state() (inside, written int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside, len(g.written)
}

func TestSerialEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{through: make(chan struct{})}
		sink := newSerialEventSink(g)
		sink.maxWaiting = 3
		ctx, cancel := context.WithCancel(t.Context())
		create := func(name string) {
			go func() {
				if _, err := sink.Create(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			synctest.Wait()
		}
		expect := func(inside, written int) {
			t.Helper()
			synctest.Wait()
			if i, w := g.state(); i != inside || w != written {
				t.Fatalf("%d being written, %d written; want %d, %d", i, w, inside, written)
			}
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			create(name)
		}
		expect(1, 0)
		create("above the limit")
		expect(2, 0)
		g.through <- struct{}{}
		g.through <- struct{}{}
		expect(1, 2)
		g.through <- struct{}{}
		expect(1, 3)
		// The event that still waits is dropped, the one being written is not.
		create("e")
		cancel()
		expect(1, 3)
		g.through <- struct{}{}
		expect(0, 4)
	})
}
