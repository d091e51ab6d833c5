package podsource

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/pod/staticpod"
)

// staticPods starts the sources of static pods by calling start for each goroutine. The returned channel is
// closed when all of them have delivered their pods. It is never closed if one fails before that.
func (s *Sources) staticPods(ctx context.Context, start func(func())) <-chan struct{} {
	delivered := make(chan struct{})
	var left atomic.Int32
	left.Store(1)
	one := func() {
		if left.Add(-1) == 0 {
			close(delivered)
		}
	}
	sink := &staticSink{sources: s, stop: ctx.Done(), start: start, set: func(p *v1.Pod) { s.cfg.Workers.Set(ctx, p) }}
	follow := func(what string, run func(context.Context, func()) error) {
		left.Add(1)
		start(func() {
			if err := run(ctx, one); err != nil {
				s.cfg.Log.Error("watching directory of static pods failed; running static pods continue, but new and changed ones are not started, no retry: resolve the error and restart the kubelet", "source", what, "err", err)
			}
		})
	}
	if dir := s.cfg.ManifestDir; dir != "" {
		source := &staticpod.Source{Dir: dir, NodeName: s.cfg.NodeName, Sink: sink, Log: s.cfg.Log, Ignored: s.cfg.Duplicate}
		follow(dir, source.Run)
	}
	if url := s.cfg.ManifestURL; url != "" {
		source := &staticpod.URL{URL: url, Header: s.cfg.Header, Every: s.cfg.CheckInterval, NodeName: s.cfg.NodeName, Sink: sink, Log: s.cfg.Log}
		follow(url, source.Run)
	}
	one()
	return delivered
}

// staticSink passes static pods to the workers. A pod whose manifest has changed is a new pod with another
// UID. It starts after the old pod of its name has terminated, because both may need the same host ports.
// Until then the API has the mirror pod of the old one.
type staticSink struct {
	sources *Sources
	stop    <-chan struct{} // closed when the kubelet stops
	start   func(func())
	set     func(*v1.Pod) // starts or updates a pod

	mu    sync.Mutex // guards the following fields
	names map[string]*staticName
}

// staticName is the state of the static pods with one namespace and name.
type staticName struct {
	desired     *v1.Pod   // desired pod; nil for none
	lastStarted types.UID // pod that was started last and may be terminating
	// busy: a goroutine starts the desired pod, or waits to do so. It starts the latest desired
	// pod; pods that were replaced before never run.
	busy bool
}

// Set makes p the desired pod of its name. It is started immediately or, in a goroutine, when the pods that
// it waits for have terminated.
func (s *staticSink) Set(p *v1.Pod) {
	s.mu.Lock()
	if s.names == nil {
		s.names = map[string]*staticName{}
	}
	n := s.names[p.Namespace+"/"+p.Name]
	if n == nil {
		n = &staticName{}
		s.names[p.Namespace+"/"+p.Name] = n
	}
	n.desired = p
	waits := s.blockers(n)
	free := !n.busy
	n.busy = true
	s.mu.Unlock()
	switch {
	case !free:
	case len(waits) == 0:
		s.run(n)
	default:
		s.start(func() { s.run(n) })
	}
}

// blockers returns the channels that must be closed before the desired pod of n can run, because a pod is still
// terminating: that pod itself, if it was removed before, and the pod with another UID that was last started under
// the same name. The caller must hold mu.
func (s *staticSink) blockers(n *staticName) []<-chan struct{} {
	// A terminating pod cannot be run again before it has terminated.
	out := []<-chan struct{}{s.sources.cfg.Registry.RestartRemoved(n.desired.UID)}
	if n.lastStarted != n.desired.UID {
		out = append(out, s.sources.cfg.Registry.Done(n.lastStarted))
	}
	return slices.DeleteFunc(out, func(done <-chan struct{}) bool { return done == nil })
}

// run starts the desired pod of the name n when nothing blocks it. If the desired pod changes in the
// meantime, it continues with the new one. It returns when the desired pod was started, there is none, or the
// kubelet stops.
func (s *staticSink) run(n *staticName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { n.busy = false }()
	for n.desired != nil {
		if waits := s.blockers(n); len(waits) > 0 {
			s.mu.Unlock()
			over := s.await(waits)
			s.mu.Lock()
			if over {
				return
			}
			continue
		}
		p := n.desired
		n.lastStarted = p.UID
		if s.sources.cfg.Mirrors != nil {
			s.sources.cfg.Mirrors.Set(p) // before mu is unlocked, so that a concurrent Remove finds it
		}
		s.mu.Unlock()
		s.set(p)
		s.mu.Lock()
		if n.desired == p {
			return
		}
		if n.desired == nil || n.desired.UID != p.UID {
			s.sources.removed(p.UID) // it was removed before the manager had it
		}
	}
}

// await waits until all channels of a list are closed. It returns true if the kubelet stops before that.
func (s *staticSink) await(list []<-chan struct{}) (over bool) {
	for _, done := range list {
		select {
		case <-s.stop:
			return true
		case <-done:
		}
	}
	return false
}

// Remove terminates the pod with that UID. Its mirror pod is deleted when it has terminated, unless it is
// desired again.
func (s *staticSink) Remove(uid types.UID) {
	s.mu.Lock()
	for _, n := range s.names {
		if n.desired != nil && n.desired.UID == uid {
			n.desired = nil
		}
	}
	s.mu.Unlock()
	done := s.sources.cfg.Registry.Done(uid)
	s.sources.removed(uid)
	switch {
	case s.sources.cfg.Mirrors == nil:
	case done == nil:
		s.sources.cfg.Mirrors.Remove(uid)
	default:
		s.start(func() {
			select {
			case <-s.stop:
			case <-done:
				s.mu.Lock()
				defer s.mu.Unlock()
				if !s.isDesired(uid) {
					s.sources.cfg.Mirrors.Remove(uid)
				}
			}
		})
	}
}

// isDesired reports whether the pod with that UID is a desired one. The caller must hold mu.
func (s *staticSink) isDesired(uid types.UID) bool {
	for _, n := range s.names {
		if n.desired != nil && n.desired.UID == uid {
			return true
		}
	}
	return false
}
