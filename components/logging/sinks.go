package logging

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/sink"
	"hyperkube/components/logging/store"
	"hyperkube/internal/base/lifecycle"
)

// sinks runs a worker for each configured sink.
type sinks struct {
	dir   string
	store *store.Store
	log   *slog.Logger

	mu      sync.Mutex // guards running
	running []runningSink
}

// runningSink is the worker of a sink.
type runningSink struct {
	settings settings.Sink
	worker   *sink.Worker
	task     *lifecycle.Task
}

// apply stops the workers of sinks that are not configured anymore or differ, and starts those of the others. An invalid sink is logged and left out.
// The workers stop when ctx is done. It must not be called concurrently.
func (s *sinks) apply(ctx context.Context, desired []settings.Sink) {
	var keep []runningSink
	for _, r := range s.current() {
		if slices.ContainsFunc(desired, func(d settings.Sink) bool { return reflect.DeepEqual(d, r.settings) }) {
			keep = append(keep, r)
		} else {
			r.task.Stop()
		}
	}
	for _, d := range desired {
		if slices.ContainsFunc(keep, func(r runningSink) bool { return r.settings.Name == d.Name }) {
			continue
		}
		w, err := sink.New(sink.Config{Settings: d, Dir: s.dir, Store: s.store, Log: s.log})
		if err != nil {
			s.log.Error("starting a log sink failed; it receives no records, no retry: correct its configuration", "sink", d.Name, "err", err)
			continue
		}
		keep = append(keep, runningSink{settings: d, worker: w, task: lifecycle.StartTask(ctx, func(ctx context.Context) { _ = w.Run(ctx) })})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = keep
}

// current returns the running sinks.
func (s *sinks) current() []runningSink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.running)
}

// stop stops all workers.
func (s *sinks) stop() {
	for _, r := range s.current() {
		r.task.Stop()
	}
}
