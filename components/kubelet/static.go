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
	set := func() {
		if s.k.mirrors != nil {
			s.k.mirrors.Set(p)
		}
		s.k.manager.Set(p)
	}
	// A pod that is ending is not run again before it has ended.
	waits := []<-chan struct{}{s.k.manager.Renew(p.UID)}
	if old != p.UID {
		waits = append(waits, s.k.manager.Done(old))
	}
	waits = slices.DeleteFunc(waits, func(done <-chan struct{}) bool { return done == nil })
	if len(waits) == 0 {
		set()
		return
	}
	s.start(func() {
		for _, done := range waits {
			select {
			case <-s.stop:
				return
			case <-done:
			}
		}
		s.mu.Lock()
		wanted := s.current[name] == p
		s.mu.Unlock()
		if wanted {
			set()
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
				if !s.wants(uid) {
					s.k.mirrors.Remove(uid)
				}
			}
		})
	}
}

// wants tells whether there is a pod of that UID, perhaps again.
func (s *staticSink) wants(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.current {
		if p.UID == uid {
			return true
		}
	}
	return false
}
