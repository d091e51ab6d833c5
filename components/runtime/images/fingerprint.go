package images

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fingerprintFile is the name of the file next to a layer's files that contains its fingerprint.
const fingerprintFile = "census"

// fingerprint returns a fingerprint of a layer's files computed without reading them: names, types,
// modes, sizes, times and owners, in any order. It detects missing, truncated and modified files,
// but not corrupted content.
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

// Inspect verifies the fingerprints of layers of images that are in use, each once, until ctx is
// cancelled. It runs in the background, because it takes a second or more on a cold disk. A
// modified layer is moved aside: running containers keep it, and its images are pulled again for
// the next container.
func (s *Store) Inspect(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.inspectionQueued:
		}
		for {
			layer, ok := s.nextQueued()
			if !ok {
				break
			}
			if err := s.inspect(ctx, layer); err != nil && ctx.Err() == nil {
				s.log.Warn("inspecting image layer failed", "layer", layer, "err", err)
			}
		}
	}
}

// queueInspection queues layers that have not been inspected yet.
func (s *Store) queueInspection(layers []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, layer := range layers {
		if !s.inspected[layer] {
			s.inspected[layer] = true
			s.queue = append(s.queue, layer)
		}
	}
	if len(s.queue) > 0 {
		select {
		case s.inspectionQueued <- struct{}{}:
		default:
		}
	}
}

func (s *Store) nextQueued() (layer string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return "", false
	}
	layer, s.queue = s.queue[0], s.queue[1:]
	return layer, true
}

func (s *Store) inspect(ctx context.Context, layer string) error {
	want, err := os.ReadFile(s.path("layers", layer, fingerprintFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // created without a fingerprint, or deleted
	}
	if err != nil {
		return err
	}
	have, err := fingerprint(ctx, s.LayerDir(layer))
	if err != nil && !errors.Is(err, unix.EUCLEAN) && !errors.Is(err, unix.EIO) || have == strings.TrimSpace(string(want)) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Warn("image layer was modified, pulling its images again", "layer", layer, "err", err)
	// The replacement is inspected too.
	delete(s.inspected, layer)
	return s.moveAside(layer)
}
