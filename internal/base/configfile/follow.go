// Package configfile watches configuration files that can be replaced while the program runs.
package configfile

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"hyperkube/internal/base/backoff"
)

// Follow calls look immediately, and then whenever the file at path may have changed, until ctx is
// done. look reads the file and must detect itself whether the content has changed, because Follow
// also calls it for changes of other files in the directory. All calls are made by one goroutine.
// Follow returns an error if the directory of the file cannot be watched.
func Follow(ctx context.Context, path string, log *slog.Logger, look func()) error {
	return FollowRetrying(ctx, path, log, func() bool { look(); return true })
}

// firstRetry and lastRetry are the minimum and maximum delay before FollowRetrying calls look
// again. The delay doubles with each failure.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// FollowRetrying is like Follow, but look can also fail for reasons other than the content of the
// file, such as a service that does not respond. If look returns false, FollowRetrying calls it
// again after a delay that doubles from one second to one minute.
func FollowRetrying(ctx context.Context, path string, log *slog.Logger, look func() (ok bool)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer func() { _ = watcher.Close() }()
	// Watch the directory instead of the file: files are replaced by renaming, and files of mounted
	// volumes by changing a symbolic link in the same directory.
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	again := time.NewTimer(0)
	defer again.Stop()
	retry := backoff.Backoff{First: firstRetry, Max: lastRetry}
	for {
		again.Stop()
		if look() {
			retry.Reset()
		} else {
			again.Reset(retry.Next())
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			log.ErrorContext(ctx, "watch of configuration file reported an error, so changes may have been missed; reading the file again now", "file", path, "err", err)
		case <-watcher.Events:
		case <-again.C:
		}
	}
}
