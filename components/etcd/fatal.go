package etcd

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// fatal is what etcd ends its process with.
type fatal struct {
	message string
	cause   error
}

func (f *fatal) Error() string { return fmt.Sprintf("%s: %v", f.message, f.cause) }
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
type fatalHook struct{}

// OnWrite is called when the entry has been written.
func (fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zap.Field) {
	frames := make([]uintptr, 64)
	callers := runtime.CallersFrames(frames[:runtime.Callers(1, frames)])
	for more := true; more; {
		var frame runtime.Frame
		frame, more = callers.Next()
		if !strings.HasSuffix(frame.Function, "/etcd.startMember") {
			continue
		}
		out := &fatal{message: entry.Message}
		for _, f := range fields {
			if err, ok := f.Interface.(error); ok {
				out.cause = err
			}
		}
		panic(out)
	}
	os.Exit(1)
}
