package images

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// fingerprintFile is the name of the file that contains the fingerprint of a layer, beside the directory of the layer's
// files.
const fingerprintFile = "census"

// fingerprint returns a fingerprint of the files below root, the directory of a layer. It is computed from names,
// types, modes, sizes, times and owners, without reading the files. It detects missing, truncated and modified files,
// but not corrupted content of the same size.
func fingerprint(ctx context.Context, root string) (string, error) {
	var count, sum uint64
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: file, Err: err}
		}
		if e.IsDir() {
			// Sizes and times of directories depend on the file system.
			st.Size, st.Mtim.Sec = 0, 0
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%o %d %d %d %d %d", strings.TrimPrefix(file, root), st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Rdev)
		count++
		sum += h.Sum64()
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("computing fingerprint of %s: %w", root, err)
	}
	return fmt.Sprintf("%d %016x", count, sum), nil
}

// inspector compares layers with their fingerprints in the background, see Store.Inspect. Each layer is checked once
// after the runtime has started.
type inspector struct {
	layers *layerStore
	log    *slog.Logger
	queued chan struct{} // wakes run

	mu sync.Mutex // guards the fields below
	// inspected are the layers that were inspected or are queued.
	inspected map[string]bool
	queue     []string
}

func newInspector(layers *layerStore, log *slog.Logger) *inspector {
	return &inspector{layers: layers, log: log, inspected: map[string]bool{}, queued: make(chan struct{}, 1)}
}

// run checks layers in the queue until ctx is done. A layer that cannot be checked is logged and not checked
// again.
func (i *inspector) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.queued:
		}
		for {
			layer, ok := i.next()
			if !ok {
				break
			}
			if err := i.inspect(ctx, layer); err != nil && ctx.Err() == nil {
				i.log.Warn("verifying content of image layer failed; containers use the layer without verification until the container runtime restarts", "layer", layer, "err", err)
			}
		}
	}
}

// add queues those of the layers that have not been checked or queued yet. It does not block.
func (i *inspector) add(layers []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, layer := range layers {
		if !i.inspected[layer] {
			i.inspected[layer] = true
			i.queue = append(i.queue, layer)
		}
	}
	if len(i.queue) > 0 {
		select {
		case i.queued <- struct{}{}:
		default:
		}
	}
}

// next removes the first layer from the queue. ok is false if the queue is empty.
func (i *inspector) next() (layer string, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 {
		return "", false
	}
	layer, i.queue = i.queue[0], i.queue[1:]
	return layer, true
}

// inspect compares a layer with its fingerprint. A layer that differs, or whose files the file system reports
// as corrupt or unreadable, is moved aside, so that it is pulled again. Layers without a fingerprint are not
// checked. Other errors are returned and change nothing.
func (i *inspector) inspect(ctx context.Context, layer string) error {
	want, err := os.ReadFile(i.layers.path("layers", layer, fingerprintFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // created without a fingerprint, or deleted
	}
	if err != nil {
		return err
	}
	have, err := fingerprint(ctx, i.layers.filesOf(layer))
	if err != nil && !errors.Is(err, unix.EUCLEAN) && !errors.Is(err, unix.EIO) || have == strings.TrimSpace(string(want)) {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.log.Warn("content of image layer on disk was modified or is unreadable; images with this layer are pulled again at their next use", "layer", layer, "err", err)
	// The replacement is inspected too.
	delete(i.inspected, layer)
	return i.layers.moveAside(layer)
}
