// Package logs has the format of a component's log, and brings into it what libraries
// log by ways of their own.
package logs

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/klog/v2"
)

// bridge is crossed once a process: klog has one logger, that may not be changed
// while it is in use.
var bridge sync.Once

// Own makes log the process's: what has no logger of its own, and what client-go and
// the like log by klog, goes there from now on. It may be called again with another,
// as by tests.
func Own(log *slog.Logger) {
	slog.SetDefault(log)
	bridge.Do(func() { klog.SetSlogLogger(slog.New(current{})) })
}

// current is whatever handler the process's log has at the time.
type current struct{}

func (current) Enabled(ctx context.Context, level slog.Level) bool {
	return slog.Default().Handler().Enabled(ctx, level)
}

func (current) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}

func (current) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slog.Default().Handler().WithAttrs(attrs)
}

func (current) WithGroup(name string) slog.Handler { return slog.Default().Handler().WithGroup(name) }
