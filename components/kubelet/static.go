package kubelet

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staticSink takes static pods. A pod whose manifest has changed is a new pod:
// it starts once the old one of its name has ended, for the two would want the
// same ports.
type staticSink struct {
	k     *Kubelet
	stop  <-chan struct{} // closed when the run ends
	start func(func())

	mu      sync.Mutex
	current map[string]*v1.Pod   // by namespace/name: what the directory holds
	before  map[string]types.UID // by namespace/name: what was run last
}

// Set implements staticpod.Sink.
func (s *staticSink) Set(p *v1.Pod) {
	name := p.Namespace + "/" + p.Name
	s.mu.Lock()
	if s.current == nil {
		s.current, s.before = map[string]*v1.Pod{}, map[string]types.UID{}
	}
	s.current[name] = p
	old := s.before[name]
	s.before[name] = p.UID
	s.mu.Unlock()
	if s.k.mirrors != nil {
		s.k.mirrors.Set(p)
	}
	done := s.k.manager.Done(old)
	if old == "" || old == p.UID || done == nil {
		s.k.manager.Set(p)
		return
	}
	s.start(func() {
		select {
		case <-s.stop:
			return
		case <-done:
		}
		s.mu.Lock()
		wanted := s.current[name] == p
		s.mu.Unlock()
		if wanted {
			s.k.manager.Set(p)
		}
	})
}

// Remove implements staticpod.Sink.
func (s *staticSink) Remove(uid types.UID) {
	s.mu.Lock()
	for name, p := range s.current {
		if p.UID == uid {
			delete(s.current, name)
		}
	}
	s.mu.Unlock()
	if s.k.mirrors != nil {
		s.k.mirrors.Remove(uid)
	}
	s.k.removed(uid)
}
