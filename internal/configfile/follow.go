// Package configfile follows files of configuration that may be replaced while
// the program runs.
package configfile

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Follow calls look at once, and then whenever the file may have changed,
// until ctx ends. Look reads the file and compares by itself: it is called too
// often rather than too seldom, by one goroutine.
func Follow(ctx context.Context, path string, log *slog.Logger, look func()) error {
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
	for {
		look()
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			log.ErrorContext(ctx, "following a file", "file", path, "error", err)
		case <-watcher.Events:
		}
	}
}
