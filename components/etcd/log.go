package etcd

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// harmless is what etcd warns of though it is just as it should be here.
var harmless = map[string]bool{
	"it isn't recommended to use default name, please set a value for --name. Note that etcd might run into issue when multiple members have the same default name": true,
	"Running http and grpc server on single port. This is not recommended for production.":                                                                          true,
	"simple token is not cryptographically signed": true, // authentication is by certificate
	// It looks for a version that is written a little later, and looks again.
	"Failed to detect schema version":  true,
	"failed to update storage version": true,
}

// zapLogger hands what etcd logs at warning and above to a slog.Logger until
// silent is set; what is below is never put together.
func zapLogger(log *slog.Logger, silent *atomic.Bool) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&slogCore{handler: log.Handler(), silent: silent})
}

// slogCore is a zapcore.Core that writes to a slog.Handler.
type slogCore struct {
	handler slog.Handler
	silent  *atomic.Bool
}

// Enabled is for zap.
func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With is for zap.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.handler.WithAttrs(attrs(fields)), c.silent}
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
	fatal := entry.Level > zapcore.ErrorLevel
	if !c.handler.Enabled(ctx, level) || !fatal && (c.silent.Load() || harmless[entry.Message]) {
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
