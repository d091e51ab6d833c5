package broadcast

import (
	"sync"
	"testing"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestBroadcast(t *testing.T) {
	var b Broadcast
	b.Send() // without waiters
	first, same := b.Next(), b.Next()
	if first != same || closed(first) {
		t.Error("a channel is closed, or differs from another one, before Send")
	}
	b.Send()
	next := b.Next()
	if !closed(first) || closed(next) {
		t.Errorf("closed: %t before Send, %t after it", closed(first), closed(next))
	}
	b.Send()
	b.Send()
	if !closed(next) {
		t.Error("the second Send did not close the channel")
	}
}

// TestNoneLost checks that waiters see each change if they call Next before they read.
func TestNoneLost(t *testing.T) {
	var b Broadcast
	var mu sync.Mutex
	value := 0
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			for {
				next := b.Next()
				mu.Lock()
				now := value
				mu.Unlock()
				if now == 1000 {
					return
				}
				<-next
			}
		})
	}
	for range 1000 {
		mu.Lock()
		value++
		mu.Unlock()
		b.Send()
	}
	waiting.Wait()
}
