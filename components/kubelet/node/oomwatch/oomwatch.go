// Package oomwatch reads the kernel's log to find processes that the kernel has killed because the
// whole machine was out of memory. The runtime reports processes that were killed because of a
// cgroup limit.
package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Victim is a process that the kernel has killed because the machine was out of memory.
type Victim struct {
	// Process is the name of the process in the kernel. PID is its ID in the initial PID namespace.
	Process string
	PID     int
}

// Message returns the message of the event SystemOOM about the process, with upstream's text.
func (v Victim) Message() string {
	text := "System OOM encountered"
	if v.Process != "" && v.PID != 0 {
		text += fmt.Sprintf(", victim process: %s, pid: %d", v.Process, v.PID)
	}
	return text
}

// Log is the device by which the kernel's log is read.
const Log = "/dev/kmsg"

// maxRecord is the size of the read buffer in bytes. It exceeds the maximum size of a record of the kernel's
// log.
const maxRecord = 16 << 10

// Watch reads new records of the kernel's log until ctx is done. file is the device. It calls report for each
// process that was killed because the machine was out of memory. It returns an error if the log cannot be
// read.
func Watch(ctx context.Context, file string, report func(Victim)) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening kernel log: %w", err)
	}
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("seeking to the end of the kernel log: %w", err)
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
			return fmt.Errorf("reading kernel log: %w", err)
		}
		if v, ok := parse(string(buffer[:n])); ok {
			report(v)
		}
	}
}

// parse returns the victim in a record such as
// "4,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,…,global_oom,task_memcg=/,task=sh,pid=7,uid=0". ok is true if
// the OOM was system-wide: no cgroup limit was met, or the victim is in the root cgroup. It is false for all
// other records.
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
	// The name may contain commas; the fields after it do not.
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

// Report reads the kernel's log until ctx is done, and passes the message of the SystemOOM event of each
// killed process to emit. If the kernel's log is not readable, it only logs a warning.
func Report(ctx context.Context, emit func(message string), log *slog.Logger) error {
	if err := Watch(ctx, Log, func(v Victim) { emit(v.Message()) }); err != nil {
		log.Warn("watching the kernel log /dev/kmsg for OOM kills failed; SystemOOM events are not emitted until the next start of the kubelet, pods are not affected", "err", err)
	}
	return nil
}
