//go:build cgo

package container

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPunctuallyWithoutRight: who may not look at the slack of the first thread starts
// processes nevertheless.
func TestPunctuallyWithoutRight(t *testing.T) {
	if err := besideFirst(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		if err := usualSlack(); err == nil {
			return errors.New("it may look")
		}
		ran := errors.New("it ran")
		if err := punctually(func() error { return ran }); !errors.Is(err, ran) {
			return fmt.Errorf("it did not run: %w", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// besideFirst calls f on a thread that is not the first one, and is never used again.
func besideFirst(f func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			ended <- besideFirst(f) // this one is taken meanwhile
			return
		}
		ended <- f()
	}()
	return <-ended
}
