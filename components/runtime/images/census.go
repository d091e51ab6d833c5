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

// censusFile, beside a layer's files, is what census said when it was made.
const censusFile = "census"

// census tells a layer's files from others by what can be seen without reading
// them: names, kinds, modes, sizes, times and owners, in any order. It finds
// what was lost, cut short, or written to; it does not find a bit that the disk
// itself has turned.
func census(ctx context.Context, root string) (string, error) {
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
			// Their sizes and times are the file system's own affair.
			st.Size, st.Mtim.Sec = 0, 0
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%o %d %d %d %d %d", strings.TrimPrefix(file, root), st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Rdev)
		count++
		sum += h.Sum64()
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("looking through %s: %w", root, err)
	}
	return fmt.Sprintf("%d %016x", count, sum), nil
}

// Inspect compares the layers of images that are used with what they were when
// they were pulled, each once, until ctx ends. It does so behind the containers
// that use them, for on a cold disk it takes a second or more. A layer that has
// changed is put aside: who lives on it keeps it, and images that have it are
// pulled again for the next container.
func (s *Store) Inspect(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
		}
		for {
			layer, ok := s.nextDue()
			if !ok {
				break
			}
			if err := s.inspect(ctx, layer); err != nil && ctx.Err() == nil {
				s.log.Warn("a layer cannot be inspected", "layer", layer, "error", err)
			}
		}
	}
}

// wantInspected has layers inspected that never were.
func (s *Store) wantInspected(layers []string) {
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
		case s.due <- struct{}{}:
		default:
		}
	}
}

func (s *Store) nextDue() (layer string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return "", false
	}
	layer, s.queue = s.queue[0], s.queue[1:]
	return layer, true
}

func (s *Store) inspect(ctx context.Context, layer string) error {
	want, err := os.ReadFile(s.path("layers", layer, censusFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // made before there was a census, or gone
	}
	if err != nil {
		return err
	}
	have, err := census(ctx, s.LayerDir(layer))
	if err != nil && !errors.Is(err, unix.EUCLEAN) && !errors.Is(err, unix.EIO) || have == strings.TrimSpace(string(want)) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Warn("a layer has changed since it was pulled and is put aside; its images are pulled again", "layer", layer, "error", err)
	// What takes its place is inspected in turn.
	delete(s.inspected, layer)
	return s.moveAside(layer)
}
