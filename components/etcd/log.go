package etcd

import (
	"context"
	"log/slog"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger hands what etcd logs at warning and above to a slog.Logger; what
// is below is never put together.
func zapLogger(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&slogCore{handler: log.Handler()})
}

// slogCore is a zapcore.Core that writes to a slog.Handler.
type slogCore struct{ handler slog.Handler }

// Enabled is for zap.
func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With is for zap.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.handler.WithAttrs(attrs(fields))}
}

// Check is for zap.
func (c *slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write is for zap.
func (c *slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if entry.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	ctx := context.Background()
	if !c.handler.Enabled(ctx, level) {
		return nil
	}
	record := slog.NewRecord(entry.Time, level, entry.Message, 0)
	record.AddAttrs(attrs(fields)...)
	return c.handler.Handle(ctx, record)
}

// Sync is for zap.
func (c *slogCore) Sync() error { return nil }

// attrs are the fields in the order of their names.
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
