//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// monitorSlack is by how much the sleeps of Go's monitor thread may be longer than
// it asks for. It looks every 20 microseconds at what the others do while system
// calls are under way, and those of a container's start are many and short.
const monitorSlack = 200 * time.Microsecond

// slowMonitor lets Go's monitor thread sleep longer, which the kernel does for a
// thread whose timers have slack. It is the first thread that Go makes.
func slowMonitor(slack time.Duration) error {
	folder, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer folder.Close()
	// In the order in which they were made; the first one is the process.
	threads, err := folder.Readdirnames(2)
	if err != nil {
		return err
	}
	if len(threads) < 2 {
		return errors.New("there is no other thread")
	}
	return os.WriteFile(fmt.Sprintf("/proc/%s/timerslack_ns", threads[1]), strconv.AppendInt(nil, slack.Nanoseconds(), 10), 0)
}
