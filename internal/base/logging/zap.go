package logging

import (
	"context"
	"log/slog"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Zap returns a zap logger that forwards messages at level and above to log, except those for which
// drop returns true. drop may be nil. Messages of lower levels are not formatted. If log is nil,
// nothing is logged.
func Zap(log *slog.Logger, level zapcore.Level, drop func(message string) bool) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	if drop == nil {
		drop = func(string) bool { return false }
	}
	return zap.New(&slogCore{handler: log.Handler(), level: level, drop: drop})
}

// slogCore is a zapcore.Core that writes to a slog.Handler.
type slogCore struct {
	handler slog.Handler
	level   zapcore.Level
	drop    func(message string) bool
}

// Enabled implements zapcore.Core.
func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= c.level }

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.handler.WithAttrs(attrs(fields)), c.level, c.drop}
}

// Check implements zapcore.Core.
func (c *slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelError
	switch {
	case entry.Level <= zapcore.DebugLevel:
		level = slog.LevelDebug
	case entry.Level == zapcore.InfoLevel:
		level = slog.LevelInfo
	case entry.Level == zapcore.WarnLevel:
		level = slog.LevelWarn
	}
	ctx := context.Background()
	fatal := entry.Level > zapcore.ErrorLevel
	if !c.handler.Enabled(ctx, level) || !fatal && c.drop(entry.Message) {
		return nil
	}
	record := slog.NewRecord(entry.Time, level, entry.Message, 0)
	record.AddAttrs(attrs(fields)...)
	return c.handler.Handle(ctx, record)
}

// Sync implements zapcore.Core.
func (c *slogCore) Sync() error { return nil }

// attrs converts fields to attributes, sorted by name.
func attrs(fields []zapcore.Field) []slog.Attr {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	out := make([]slog.Attr, 0, len(values.Fields))
	for name, value := range values.Fields {
		out = append(out, slog.Any(name, value))
	}
	slices.SortFunc(out, func(a, b slog.Attr) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return out
}
