// Package logging implements the log formats of components, and forwards the messages of libraries
// with other log interfaces to slog.
package logging

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/klog/v2"
)

// bridge runs once per process, because klog has one logger that must not be changed while it is in
// use.
var bridge sync.Once

// SetDefault makes log the default logger of the process: slog's default logger and klog, which client-go
// uses, write to it from now on. It can be called again with another logger, for example by tests.
func SetDefault(log *slog.Logger) {
	slog.SetDefault(log)
	bridge.Do(func() { klog.SetSlogLogger(slog.New(current{})) })
}

// current is the slog handler of klog. It forwards each record to slog's default handler at that
// time, because klog's own logger can only be set once.
type current struct{}

// Enabled implements slog.Handler: the default handler decides.
func (current) Enabled(ctx context.Context, level slog.Level) bool {
	return slog.Default().Handler().Enabled(ctx, level)
}

// Handle implements slog.Handler. It passes the record to the default handler.
func (current) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}

// WithAttrs implements slog.Handler. The returned handler does not follow later calls of SetDefault.
func (current) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slog.Default().Handler().WithAttrs(attrs)
}

// WithGroup implements slog.Handler. The returned handler does not follow later calls of SetDefault.
func (current) WithGroup(name string) slog.Handler { return slog.Default().Handler().WithGroup(name) }
