//go:build cgo

package container

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// punctually calls start, which starts a process, on a thread whose timers have the
// slack that this program was started with. A process has what the thread has that
// starts it, a thread what that one has that makes it: and that may be Go's monitor
// thread, which sleeps longer than others (see slowMonitor of the runtime's program).
func punctually(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Who may not look at the slack of another thread, as without CAP_SYS_NICE, may
	// not have changed it either: there is nothing to set right.
	_ = usualSlack()
	return start()
}

// usualSlack gives the calling thread the slack of the first one.
func usualSlack() error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", os.Getpid()))
	if err != nil {
		return err
	}
	slack, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || slack == 0 {
		return err // a thread of real-time class has none, and keeps none
	}
	return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
}
