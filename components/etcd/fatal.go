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

// fatal is what etcd ends its process with.
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

// startMember is embed.StartEtcd, for which what ends the process in it is an
// error: etcd ends it at most of what is wrong with its files. A process that is
// told so ends soon, too, and with it what stays open.
func startMember(cfg *embed.Config) (member *embed.Etcd, err error) {
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case *fatal:
			err = problem
		case runtime.Error:
			panic(problem) // a mistake of somebody's, not of the data
		default:
			err = fmt.Errorf("%v", problem)
		}
	}()
	return embed.StartEtcd(cfg)
}

// fatalHook ends the process as zap does, or startMember if it was called there.
type fatalHook struct{ log *slog.Logger }

// OnWrite is called when the entry has been written.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	endStart(problem)
	h.tellFull(problem)
	os.Exit(1)
}

// panicHook panics as zap does, or ends startMember, with the cause, if it was called there.
// Where the disk is full a stack tells nothing, and hides what does.
type panicHook struct{ fatalHook }

// OnWrite is called when the entry has been written.
func (h panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	problem := fatalOf(entry.Message, fields)
	endStart(problem)
	if h.tellFull(problem) {
		os.Exit(1)
	}
	panic(entry.Message)
}

// tellFull says what is to be done if it was for want of space that etcd ends.
func (h fatalHook) tellFull(problem *fatal) bool {
	if !isFull(problem) {
		return false
	}
	h.log.Error("etcd's disk is full: make space there, then start it again", "error", problem)
	return true
}

// isFull tells whether an error is for want of space.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// fatalOf is what etcd has logged last.
func fatalOf(message string, fields []zap.Field) *fatal {
	out := &fatal{message: message}
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			out.cause = err
		}
	}
	return out
}

// endStart ends startMember if that is what is being run.
func endStart(problem *fatal) {
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
