package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// fatal is the error with which etcd terminates its process.
type fatal struct {
	message string
	cause   error
}

func (f *fatal) Error() string {
	if f.cause == nil {
		return f.message
	}
	return fmt.Sprintf("%s: %v", f.message, f.cause)
}

func (f *fatal) Unwrap() error { return f.cause }

// startMember calls embed.StartEtcd and converts a termination of the process into an error. etcd
// terminates the process on most errors of its data files. The caller is expected to exit soon
// after such an error, because files stay open.
func startMember(cfg *embed.Config) (member *embed.Etcd, err error) {
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case *fatal:
			err = problem
		case runtime.Error:
			panic(problem) // a programming error, not a data error
		default:
			err = fmt.Errorf("%v", problem)
		}
	}()
	return embed.StartEtcd(cfg)
}

// fatalHook exits the process like zap's fatal hook, except within startMember, where it panics
// with a *fatal.
type fatalHook struct {
	log *slog.Logger
	// diskFull is Config.DiskFull.
	diskFull func(error)
}

// OnWrite is called after the entry is written.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	abortStart(problem)
	h.logDiskFull(problem)
	os.Exit(1)
}

// panicHook panics like zap's panic hook, except within startMember, where it panics with a *fatal.
// If the disk is full it exits without a stack trace, which would hide the cause.
type panicHook struct{ fatalHook }

// OnWrite is called after the entry is written.
func (h panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	abortStart(problem)
	if h.logDiskFull(problem) {
		os.Exit(1)
	}
	panic(entry.Message)
}

// logDiskFull logs advice and returns true if problem was caused by a full disk.
func (h fatalHook) logDiskFull(problem *fatal) bool {
	if !IsDiskFull(problem) {
		return false
	}
	h.log.Error("etcd exits because its disk is full: free space, then etcd can start again", "err", problem)
	if h.diskFull != nil {
		h.diskFull(problem)
	}
	return true
}

// IsDiskFull reports whether the cause of an error is a full disk or an exceeded disk quota.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// fatalOf converts the last log entry of etcd to an error.
func fatalOf(message string, fields []zap.Field) *fatal {
	out := &fatal{message: message}
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			out.cause = err
		}
	}
	return out
}

// abortStart panics with problem if startMember is on the call stack.
func abortStart(problem *fatal) {
	frames := make([]uintptr, 64)
	callers := runtime.CallersFrames(frames[:runtime.Callers(1, frames)])
	for more := true; more; {
		var frame runtime.Frame
		frame, more = callers.Next()
		if strings.HasSuffix(frame.Function, "/etcd.startMember") {
			panic(problem)
		}
	}
}
