// Package configfile follows files of configuration that may be replaced while
// the program runs.
package configfile

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Follow calls look at once, and then whenever the file may have changed,
// until ctx ends. Look reads the file and compares by itself: it is called too
// often rather than too seldom, by one goroutine.
func Follow(ctx context.Context, path string, log *slog.Logger, look func()) error {
	return FollowRetrying(ctx, path, log, func() bool { look(); return true })
}

// How long FollowRetrying waits before it looks again; twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// FollowRetrying is Follow for a look that may fail by what is not in the file:
// when it returns false it is called again after a while.
func FollowRetrying(ctx context.Context, path string, log *slog.Logger, look func() (ok bool)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("following %s: %w", path, err)
	}
	defer func() { _ = watcher.Close() }()
	// The directory and not the file: files are replaced by renaming, and
	// mounted ones by a symbolic link beside them.
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("following %s: %w", path, err)
	}
	again := time.NewTimer(0)
	defer again.Stop()
	wait := firstRetry
	for {
		again.Stop()
		if look() {
			wait = firstRetry
		} else {
			again.Reset(wait)
			wait = min(2*wait, lastRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			log.ErrorContext(ctx, "following a file", "file", path, "error", err)
		case <-watcher.Events:
		case <-again.C:
		}
	}
}
