// Package oomwatch follows the kernel's log for processes that the kernel has
// killed because the whole machine was out of memory. What ran into a limit of its
// own is the runtime's to tell.
package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Victim is a process that was killed.
type Victim struct {
	// Process is its name, as the kernel has it; PID its number in the first
	// namespace.
	Process string
	PID     int
}

// Message is the text of the event SystemOOM.
func (v Victim) Message() string {
	text := "System OOM encountered"
	if v.Process != "" && v.PID != 0 {
		text += fmt.Sprintf(", victim process: %s, pid: %d", v.Process, v.PID)
	}
	return text
}

// Log is the kernel's log.
const Log = "/dev/kmsg"

// maxRecord is more than the kernel gives at once.
const maxRecord = 16 << 10

// Watch calls tell for each victim of the machine's own shortage that file, the
// kernel's log, tells of from now on, until ctx ends.
func Watch(ctx context.Context, file string, tell func(Victim)) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the kernel's log: %w", err)
	}
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("going to the end of the kernel's log: %w", err)
	}
	log := os.NewFile(uintptr(fd), file)
	var closing sync.WaitGroup
	defer closing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closing.Go(func() {
		<-ctx.Done()
		log.Close()
	})
	buffer := make([]byte, maxRecord)
	for {
		n, err := log.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE):
			// Records were overwritten before they were read.
			continue
		case err != nil:
			return fmt.Errorf("reading the kernel's log: %w", err)
		}
		if v, ok := parse(string(buffer[:n])); ok {
			tell(v)
		}
	}
}

// parse reads a record such as
// "4,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,…,global_oom,task_memcg=/,task=sh,pid=7,uid=0".
// It is of the machine when no group had a limit that was met, or the victim is in
// none.
func parse(record string) (v Victim, ok bool) {
	_, text, ok := strings.Cut(record, ";oom-kill:constraint=")
	if !ok {
		return v, false
	}
	text, _, _ = strings.Cut(text, "\n")
	_, rest, found := strings.Cut(text, ",task_memcg=")
	if !found {
		return v, false
	}
	group, rest, found := strings.Cut(rest, ",task=")
	if !found || group != "/" && !strings.Contains(text, ",global_oom,") {
		return v, false
	}
	// A name may have commas, what follows it has none.
	end := strings.LastIndex(rest, ",pid=")
	if end < 0 {
		return v, false
	}
	v.Process = rest[:end]
	pid, _, _ := strings.Cut(rest[end+len(",pid="):], ",")
	var err error
	if v.PID, err = strconv.Atoi(pid); err != nil || v.PID < 0 {
		return Victim{}, false
	}
	return v, true
}
