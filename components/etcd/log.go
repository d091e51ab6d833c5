package etcd

import (
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"hyperkube/internal/logs"
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
	drop := func(message string) bool { return silent.Load() || harmless[message] }
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	end := fatalHook{log}
	return logs.Zap(log, drop).WithOptions(zap.WithFatalHook(end), zap.WithPanicHook(panicHook{end}))
}

// removedWords are etcd's last ones when others answer that they have removed it: nothing
// else tells.
const removedWords = "data-dir used by this member must be removed"

// noticing sets removed once etcd logs those.
func noticing(log *zap.Logger, removed *atomic.Bool) *zap.Logger {
	return log.WithOptions(zap.Hooks(func(entry zapcore.Entry) error {
		if entry.Message == removedWords {
			removed.Store(true)
		}
		return nil
	}))
}
