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

// gate is a sink in which events stay until they are let through.
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

func TestEventsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{through: make(chan struct{})}
		sink := newUnhurried(g)
		sink.most = 3
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
				t.Fatalf("%d are being written, %d are; want %d, %d", i, w, inside, written)
			}
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			create(name)
		}
		expect(1, 0)
		create("one too many to be held back")
		expect(2, 0)
		g.through <- struct{}{}
		g.through <- struct{}{}
		expect(1, 2)
		g.through <- struct{}{}
		expect(1, 3)
		// The one that still waits is given up, the one under way is not.
		create("e")
		cancel()
		expect(1, 3)
		g.through <- struct{}{}
		expect(0, 4)
	})
}
