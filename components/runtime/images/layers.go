package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// storeDir is the directory of an image store. It contains the directories "images" with a file for each image,
// "layers" with unpacked layers, and "tmp" with partial data.
type storeDir string

// path returns the path of parts below the directory of the store.
func (d storeDir) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// layerStore creates, verifies and removes the unpacked layers of images. Its methods are safe for concurrent use.
type layerStore struct {
	storeDir

	mu sync.Mutex // guards work
	// work contains an entry for each layer that is being unpacked, so that concurrent pulls of the
	// layer share the work, and an entry for each call of hold. While it is not empty, no layers are
	// removed.
	work map[string]*layerWork
}

func newLayerStore(dir storeDir) *layerStore {
	return &layerStore{storeDir: dir, work: map[string]*layerWork{}}
}

// layerWork is a layer that is being unpacked. err is the result and may be read after done is closed.
type layerWork struct {
	done chan struct{}
	err  error
}

// filesOf returns the directory with a layer's files.
func (l *layerStore) filesOf(layer string) string { return l.path("layers", layer, "fs") }

// hasAll reports whether all layers of an image exist in the store and pass the quick check of has.
func (l *layerStore) hasAll(image *Image) bool {
	return !slices.ContainsFunc(image.Layers, func(layer string) bool { return !l.has(layer) })
}

// has reports whether a layer exists and its directory still has as many entries as when it was created. Fewer
// mean that files were lost, for example in a file system repair. A layer for which no number was recorded only
// needs to exist.
func (l *layerStore) has(layer string) bool {
	info, err := os.Stat(l.filesOf(layer))
	if err != nil || !info.IsDir() {
		return false
	}
	want, err := os.ReadFile(l.path("layers", layer, countFile))
	if err != nil {
		return true // created by an earlier version, or not by a pull
	}
	return strings.TrimSpace(string(want)) == fmt.Sprint(topEntries(l.filesOf(layer)))
}

// countFile is the name of the file that contains the number of top-level entries of a layer, beside the directory of
// the layer's files. It allows has to detect cheaply that files were deleted, for example by a file system repair.
const countFile = "count"

// topEntries returns the number of entries in dir, or -1 if dir cannot be read.
func topEntries(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	return len(entries)
}

// hold prevents detach from removing layers until the caller calls the returned function. See Store.Hold.
func (l *layerStore) hold() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("hold %p", new(int))
	for l.work[key] != nil {
		key += "+"
	}
	l.work[key] = &layerWork{done: make(chan struct{})}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.work, key)
	}
}

// layerName returns the name of the directory for the layer with this diff ID. It is short, because the paths of all
// layers of a container must fit in one page of mount options.
func layerName(diffID string) string {
	name := strings.TrimPrefix(diffID, "sha256:")
	return name[:min(len(name), 32)]
}

// create creates a layer if it does not exist. fill writes its files to a directory. If several callers create the same
// layer, the first one does the work and the others wait. durable is true for layers of registries and archives, which
// are synced to disk and get a fingerprint.
func (l *layerStore) create(ctx context.Context, layer string, durable bool, fill func(dir string) error) error {
	for {
		if l.has(layer) {
			return nil
		}
		l.mu.Lock()
		if other := l.work[layer]; other != nil {
			l.mu.Unlock()
			select {
			case <-other.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if other.err == nil {
				return nil
			}
			continue // the other caller may have been cancelled
		}
		work := &layerWork{done: make(chan struct{})}
		l.work[layer] = work
		l.mu.Unlock()
		work.err = l.fill(layer, durable, fill)
		l.mu.Lock()
		delete(l.work, layer)
		l.mu.Unlock()
		close(work.done)
		return work.err
	}
}

// fill creates a layer in a temporary directory, with the content that the function of the same name writes,
// and renames it to its final name when it is complete. A durable layer is synced to disk and gets a
// fingerprint. It replaces a damaged layer of the same name.
func (l *layerStore) fill(layer string, durable bool, fill func(dir string) error) (err error) {
	tmp, err := os.MkdirTemp(l.path("tmp"), "layer-")
	if err != nil {
		return fmt.Errorf("creating layer: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	dir := filepath.Join(tmp, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("creating layer: %w", err)
	}
	if err := fill(dir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, countFile), fmt.Appendln(nil, topEntries(dir)), 0o600); err != nil {
		return fmt.Errorf("creating layer: %w", err)
	}
	if durable {
		sum, err := fingerprint(context.Background(), dir)
		if err == nil {
			err = os.WriteFile(filepath.Join(tmp, fingerprintFile), []byte(sum+"\n"), 0o600)
		}
		if err != nil {
			return fmt.Errorf("creating layer: %w", err)
		}
		// A single syncfs is faster than one fsync per file.
		if err := syncFS(tmp); err != nil {
			return err
		}
	}
	if err := l.moveAside(layer); err != nil {
		return err
	}
	if err := os.Rename(tmp, l.path("layers", layer)); err != nil {
		return fmt.Errorf("committing layer: %w", err)
	}
	return nil
}

// damagedPrefix is the name prefix of layers that moveAside has moved. The suffix is a timestamp.
const damagedPrefix = "damaged-"

// moveAside renames a damaged layer so that it can be created again. Containers that use it keep its files. Collect
// removes it when no container uses it. It is not an error if the layer does not exist.
func (l *layerStore) moveAside(layer string) error {
	err := os.Rename(l.path("layers", layer), l.path("layers", fmt.Sprintf("%s%s-%d", damagedPrefix, layer, time.Now().UnixNano())))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replacing damaged layer: %w", err)
	}
	return nil
}

// syncFS writes all data of the file system that contains dir to disk.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncing layer to disk: %w", err)
	}
	return nil
}

// list returns the names of all layers, including damaged ones.
func (l *layerStore) list() ([]string, error) {
	entries, err := os.ReadDir(l.path("layers"))
	if err != nil {
		return nil, fmt.Errorf("listing layers: %w", err)
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}

// detach moves unused layers to the temporary directory, and returns their new directories, which the caller deletes.
// Unused are those of names that are not in keep and that no container uses. used returns a function that reports
// whether a container uses a layer; it is called when no layers can be added any more. While layers are being created
// or held, detach does nothing and done is false.
func (l *layerStore) detach(names []string, keep map[string]bool, used func() func(layer string) bool) (removed []string, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Layers of a pull in progress are not in an image yet.
	if len(l.work) > 0 {
		return nil, false
	}
	inUse := used()
	for _, layer := range names {
		if keep[layer] || inUse(layer) {
			continue
		}
		// Containers refer to a damaged layer by its previous name.
		if former, ok := strings.CutPrefix(layer, damagedPrefix); ok && inUse(former[:max(strings.LastIndexByte(former, '-'), 0)]) {
			continue
		}
		// The rename removes the layer atomically.
		tmp := l.path("tmp", "gone-"+layer)
		if err := os.Rename(l.path("layers", layer), tmp); err == nil {
			removed = append(removed, tmp)
		}
	}
	return removed, true
}
