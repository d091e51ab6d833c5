package logging

import (
	"context"
	"log/slog"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Zap returns a logger for a library that uses zap, such as etcd. It forwards messages at level and
// above to log, except those for which drop returns true. Fatal messages are never dropped. drop
// may be nil. Messages of lower levels are not formatted. If log is nil, nothing is logged.
func Zap(log *slog.Logger, level zapcore.Level, drop func(message string) bool) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	if drop == nil {
		drop = func(string) bool { return false }
	}
	return zap.New(&slogCore{handler: log.Handler(), level: level, drop: drop})
}

// slogCore is the zapcore.Core behind the logger of Zap: it writes to a slog.Handler.
type slogCore struct {
	handler slog.Handler
	level   zapcore.Level
	drop    func(message string) bool
}

// Enabled reports whether messages of a level are forwarded.
func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= c.level }

// With returns a core that adds fields to each message.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.handler.WithAttrs(attrs(fields)), c.level, c.drop}
}

// Check selects this core for a message if its level is enabled, without formatting the message.
func (c *slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write forwards a message to the handler, unless the handler has disabled its level or drop returns true for it.
// Levels above Error, for which drop is not called, become Error.
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

// Sync does nothing, because the handler does not buffer messages.
func (c *slogCore) Sync() error { return nil }

// attrs converts zap's fields to slog attributes, sorted by name.
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
