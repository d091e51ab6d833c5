package etcd

import (
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"hyperkube/internal/base/logging"
)

// ignoredWarnings are log messages of etcd that are dropped because they do not apply to this
// program.
var ignoredWarnings = map[string]bool{
	"it isn't recommended to use default name, please set a value for --name. Note that etcd might run into issue when multiple members have the same default name": true,
	"Running http and grpc server on single port. This is not recommended for production.":                                                                          true,
	"simple token is not cryptographically signed": true, // clients authenticate with certificates
	// etcd retries after the version has been written.
	"Failed to detect schema version":  true,
	"failed to update storage version": true,
}

// zapLogger returns a zap logger that forwards log entries of etcd at level and above to log until silent is set; a
// nil log discards them. It always forwards warnings, whatever level is, because detectRemoval needs them, except for
// ignoredWarnings. Entries below the level are not formatted. At the fatal and panic levels it ends the process, see
// fatalHook and panicHook. diskFull is Config.DiskFull.
func zapLogger(log *slog.Logger, level zapcore.Level, silent *atomic.Bool, diskFull func(error)) *zap.Logger {
	drop := func(message string) bool { return silent.Load() || ignoredWarnings[message] }
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	end := fatalHook{log, diskFull}
	return logging.Zap(log, min(level, zapcore.WarnLevel), drop).WithOptions(zap.WithFatalHook(end), zap.WithPanicHook(panicHook{end}))
}

// removedMessage is part of etcd's log output when other members reject this member because it was
// removed from the cluster. etcd has no other notification of this.
const removedMessage = "data-dir used by this member must be removed"

// detectRemoval returns a logger that sets removed when etcd logs removedMessage to it.
func detectRemoval(log *zap.Logger, removed *atomic.Bool) *zap.Logger {
	return log.WithOptions(zap.Hooks(func(entry zapcore.Entry) error {
		if entry.Message == removedMessage {
			removed.Store(true)
		}
		return nil
	}))
}
