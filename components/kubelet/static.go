package kubelet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/staticpod"
)

// staticPods follows the sources of static pods; what it returns is closed once
// all of them have told theirs.
func (k *Kubelet) staticPods(ctx context.Context, start func(func())) <-chan struct{} {
	told := make(chan struct{})
	var left atomic.Int32
	left.Store(1)
	one := func() {
		if left.Add(-1) == 0 {
			close(told)
		}
	}
	sink := &staticSink{k: k, stop: ctx.Done(), start: start}
	follow := func(what string, run func(context.Context, func()) error) {
		left.Add(1)
		start(func() {
			if err := run(ctx, one); err != nil {
				k.log.Error("following static pods ended", "of", what, "error", err)
			}
		})
	}
	if dir := k.cfg.StaticPods.Dir; dir != "" {
		source := &staticpod.Source{Dir: dir, NodeName: k.cfg.NodeName, Sink: sink, Log: k.log, Ignored: k.doubled}
		follow(dir, source.Run)
	}
	if url := k.cfg.StaticPods.URL; url != "" {
		source := &staticpod.URL{URL: url, Header: k.cfg.StaticPods.Header, Every: k.cfg.StaticPods.Check, NodeName: k.cfg.NodeName, Sink: sink, Log: k.log}
		follow(url, source.Run)
	}
	one()
	return told
}

// doubled tells that a static pod is not run because another has its name.
func (k *Kubelet) doubled(p *v1.Pod) {
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	k.host.Events.Eventf(ref, v1.EventTypeWarning, "FailedValidation", "Error validating pod %s_%s(%s) from %s due to duplicate pod name %q, ignoring", p.Name, p.Namespace, p.UID, "file", p.Name)
}

// staticSink takes static pods. A pod whose manifest has changed is a new pod:
// it starts once the old one of its name has ended, for the two would want the
// same ports. So long the API has the old one's mirror.
type staticSink struct {
	k     *Kubelet
	stop  <-chan struct{} // closed when the run ends
	start func(func())

	mu    sync.Mutex // guards what follows
	names map[string]*staticName
}

// staticName is what there is by one namespace and name.
type staticName struct {
	wanted *v1.Pod   // what the directory holds; nil: nothing
	runs   types.UID // which was run last, and may be ending
	// busy: somebody runs what is wanted, or waits to. Whatever is wanted then is run
	// in the end, and what was wanted in between never.
	busy bool
}

// Set implements staticpod.Sink.
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
	n.wanted = p
	waits := s.waits(n)
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

// waits are what is closed when the pod that is wanted may run. The caller holds mu.
func (s *staticSink) waits(n *staticName) []<-chan struct{} {
	// A pod that is ending is not run again before it has ended.
	out := []<-chan struct{}{s.k.manager.Renew(n.wanted.UID)}
	if n.runs != n.wanted.UID {
		out = append(out, s.k.manager.Done(n.runs))
	}
	return slices.DeleteFunc(out, func(done <-chan struct{}) bool { return done == nil })
}

// run runs what is wanted by a name once it may, until that is what runs.
func (s *staticSink) run(n *staticName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { n.busy = false }()
	for n.wanted != nil {
		if waits := s.waits(n); len(waits) > 0 {
			s.mu.Unlock()
			over := s.await(waits)
			s.mu.Lock()
			if over {
				return
			}
			continue
		}
		p := n.wanted
		n.runs = p.UID
		if s.k.mirrors != nil {
			s.k.mirrors.Set(p) // before mu is given away, so that who removes the pod finds it
		}
		s.mu.Unlock()
		s.k.manager.Set(p)
		s.mu.Lock()
		if n.wanted == p {
			return
		}
		if n.wanted == nil || n.wanted.UID != p.UID {
			s.k.removed(p.UID) // nobody knew it when it was removed
		}
	}
}

// await waits for all of a list, and tells whether the run ended before.
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

// Remove implements staticpod.Sink.
func (s *staticSink) Remove(uid types.UID) {
	s.mu.Lock()
	for _, n := range s.names {
		if n.wanted != nil && n.wanted.UID == uid {
			n.wanted = nil
		}
	}
	s.mu.Unlock()
	done := s.k.manager.Done(uid)
	s.k.removed(uid)
	switch {
	case s.k.mirrors == nil:
	case done == nil:
		s.k.mirrors.Remove(uid)
	default:
		s.start(func() {
			select {
			case <-s.stop:
			case <-done:
				s.mu.Lock()
				defer s.mu.Unlock()
				if !s.wants(uid) {
					s.k.mirrors.Remove(uid)
				}
			}
		})
	}
}

// wants tells whether there is a pod of that UID, perhaps again. The caller holds mu.
func (s *staticSink) wants(uid types.UID) bool {
	for _, n := range s.names {
		if n.wanted != nil && n.wanted.UID == uid {
			return true
		}
	}
	return false
}
