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

// fatal is the error with which etcd would terminate the process: its last log message, and the error that the
// message contains, or nil.
type fatal struct {
	message string
	cause   error
}

// Error returns the last log message of etcd, and the error in it if there is one.
func (f *fatal) Error() string {
	if f.cause == nil {
		return f.message
	}
	return fmt.Sprintf("%s: %v", f.message, f.cause)
}

// Unwrap returns the error in the log message, or nil, for errors.Is.
func (f *fatal) Unwrap() error { return f.cause }

// startMember calls embed.StartEtcd and converts a termination of the process into an error. etcd terminates the
// process, by exit or panic, on most errors of its data files. Runtime errors of Go, such as a nil dereference, still
// panic. The caller is expected to exit soon after such an error, because files stay open.
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

// fatalHook is called when etcd logs at the fatal level. It exits the process with code 1, as zap does by default,
// after it has logged the remedy if the disk is full. During startMember it panics with a *fatal instead, which
// startMember returns as an error.
type fatalHook struct {
	log *slog.Logger
	// diskFull is Config.DiskFull.
	diskFull func(error)
}

// OnWrite implements zapcore.CheckWriteHook. zap calls it after it has written a message at the
// fatal level.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	abortStart(problem)
	h.logDiskFull(problem)
	os.Exit(1)
}

// panicHook is called when etcd logs at the panic level. It panics as zap does by default, during startMember with a
// *fatal. If the disk is full, it logs the remedy and exits with code 1, without a stack trace that would hide the
// cause.
type panicHook struct{ fatalHook }

// OnWrite implements zapcore.CheckWriteHook. zap calls it after it has written a message at the
// panic level.
func (h panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	abortStart(problem)
	if h.logDiskFull(problem) {
		os.Exit(1)
	}
	panic(entry.Message)
}

// logDiskFull reports whether a full disk has caused problem. In that case it logs the remedy and calls
// Config.DiskFull, if that is not nil.
func (h fatalHook) logDiskFull(problem *fatal) bool {
	if !IsDiskFull(problem) {
		return false
	}
	h.log.Error("etcd exits because its disk is full: free space, then hyperkube or the kubelet restarts etcd; the Kubernetes API is not available until then", "err", problem)
	if h.diskFull != nil {
		h.diskFull(problem)
	}
	return true
}

// IsDiskFull reports whether the cause of an error is a full disk or an exceeded disk quota.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// fatalOf converts the log message with which etcd terminates the process to an error. The cause is the last of the
// message's fields that is an error, or nil.
func fatalOf(message string, fields []zap.Field) *fatal {
	out := &fatal{message: message}
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			out.cause = err
		}
	}
	return out
}

// abortStart panics with problem if startMember is on the call stack, so that startMember can
// return it. Otherwise it returns.
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
