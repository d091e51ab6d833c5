package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/atomicfile"
)

// Store stores images below a directory. Its methods are safe for concurrent use. The directory
// must be used by one process only.
type Store struct {
	storeDir
	log       *slog.Logger
	layers    *layerStore
	inspector *inspector

	mu     sync.Mutex // guards the fields below; locked before the lock of layers
	images map[string]*Image
	names  map[string]string // normalized reference to ID
	// collectPending is true if unused layers must be removed, see CollectPending.
	collectPending bool
}

// Open opens or creates the store in the directory root and removes partial data left by a crash. A
// nil log means slog's default.
func Open(root string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.Default()
	}
	dir := storeDir(root)
	layers := newLayerStore(dir)
	s := &Store{storeDir: dir, log: log, layers: layers, inspector: newInspector(layers, log),
		images: map[string]*Image{}, names: map[string]string{}, collectPending: true}
	if err := os.RemoveAll(s.path("tmp")); errors.Is(err, unix.EROFS) {
		log.Warn("image store is on a read-only file system", "directory", dir, "err", err)
	} else if err != nil {
		return nil, fmt.Errorf("clearing image store: %w", err)
	}
	for _, dir := range []string{"tmp", "layers", "images"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("creating image store: %w", err)
		}
	}
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, fmt.Errorf("reading image store: %w", err)
	}
	var found []*Image
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		data, err := os.ReadFile(s.path("images", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading image store: %w", err)
		}
		image := &Image{}
		if err := json.Unmarshal(data, image); err != nil || image.ID == "" {
			log.Warn("image record is damaged, ignoring the image", "file", entry.Name(), "err", err)
			continue
		}
		if !s.layers.hasAll(image) {
			log.Warn("image has missing layers, ignoring it", "image", image.ID, "names", image.names())
			continue
		}
		found = append(found, image)
	}
	// If a crash interrupted the move of a tag, two records contain it. The newer record wins.
	slices.SortFunc(found, func(a, b *Image) int { return a.Time.Compare(b.Time) })
	for _, image := range found {
		s.images[image.ID] = image
		s.claimNames(image)
	}
	return s, nil
}

// LayerDir returns the directory with a layer's files.
func (s *Store) LayerDir(layer string) string { return s.layers.filesOf(layer) }

// Inspect verifies the fingerprints of layers of images that are in use, each once, until ctx is
// cancelled. It runs in the background, because it takes a second or more on a cold disk. A
// modified layer is moved aside: running containers keep it, and its images are pulled again for
// the next container.
func (s *Store) Inspect(ctx context.Context) { s.inspector.run(ctx) }

// claimNames assigns the image's names to it and removes them from other images. The caller must hold
// mu.
func (s *Store) claimNames(image *Image) {
	for _, other := range s.previousOwners(image) {
		s.images[other.ID] = other
	}
	for _, name := range image.names() {
		s.names[name] = image.ID
	}
}

// previousOwners returns the other images that have names of the image, without these names. The
// caller must hold mu.
func (s *Store) previousOwners(image *Image) []*Image {
	others := map[string]*Image{}
	for _, name := range image.names() {
		id := s.names[name]
		if id == image.ID || s.images[id] == nil {
			continue
		}
		if others[id] == nil {
			others[id] = s.images[id].clone()
		}
		others[id].Tags = slices.DeleteFunc(others[id].Tags, func(t string) bool { return t == name })
		others[id].Digests = slices.DeleteFunc(others[id].Digests, func(t string) bool { return t == name })
	}
	return slices.Collect(maps.Values(others))
}

// put records an image. Names of an existing record are kept.
func (s *Store) put(image *Image) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	image = image.clone()
	if old := s.images[image.ID]; old != nil {
		image.Pinned = image.Pinned || old.Pinned
		image.Tags = union(old.Tags, image.Tags)
		image.Digests = union(old.Digests, image.Digests)
		image.Size = max(image.Size, old.Size)
	}
	image.Time = time.Now()
	if err := s.write(append(s.previousOwners(image), image)...); err != nil {
		return nil, fmt.Errorf("recording image %s: %w", image.ID, err)
	}
	s.images[image.ID] = image
	s.claimNames(image)
	return image, nil
}

func union(a, b []string) []string {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *Store) record(id string) string {
	return s.path("images", strings.TrimPrefix(id, "sha256:")+".json")
}

// write writes the records of images. If the disk is full, it changes none.
func (s *Store) write(images ...*Image) error {
	files := make([]atomicfile.File, len(images))
	for i, image := range images {
		data, err := json.Marshal(image)
		if err != nil {
			return err
		}
		files[i] = atomicfile.File{Path: s.record(image.ID), Data: data, Mode: 0o600, SkipSync: image.BuiltIn}
	}
	return atomicfile.Write(files...)
}

// List returns all images, sorted by ID.
func (s *Store) List() []*Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Image, 0, len(s.images))
	for _, image := range s.images {
		list = append(list, image)
	}
	slices.SortFunc(list, func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Get returns an image by ID, with or without "sha256:", or by a reference in any form. It returns
// ErrNotFound if the image does not exist.
func (s *Store) Get(ref string) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if image := s.images["sha256:"+strings.TrimPrefix(ref, "sha256:")]; image != nil {
		return image, nil
	}
	if normal, err := Normalize(ref); err == nil {
		if image := s.images[s.names[normal]]; image != nil {
			return image, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", ref, ErrNotFound)
}

// Verify returns an image like Get and checks that all its layers exist. An image with missing or
// empty layers is removed, so that it is pulled again, and Verify returns ErrNotFound. New layers
// are queued for a thorough check, see Inspect.
func (s *Store) Verify(ref string) (*Image, error) {
	image, err := s.Get(ref)
	if err != nil {
		return nil, err
	}
	if s.layers.hasAll(image) {
		s.inspector.add(image.Layers)
		return image, nil
	}
	s.log.Warn("image has missing layers, removing it: it must be pulled again", "image", image.ID, "names", image.names())
	if err := s.forget(image); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("image %q has missing layers: %w", ref, ErrNotFound)
}

// forget deletes the record and the names of an image.
func (s *Store) forget(image *Image) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(s.record(image.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing image %s: %w", image.ID, err)
	}
	delete(s.images, image.ID)
	for name, id := range s.names {
		if id == image.ID {
			delete(s.names, name)
		}
	}
	return nil
}

// Remove removes an image with all its names, and the layers that are not used by other images or
// containers, see Collect. It is not an error if the image does not exist.
func (s *Store) Remove(ref string, used func() func(layer string) bool) error {
	image, err := s.Get(ref)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.forget(image); err != nil {
		return err
	}
	return s.Collect(used)
}

// CollectPending calls Collect if a previous Collect was skipped because images or containers were
// being created, or if the disk was full when an image was created, whose layers are then of no use.
// After Open it always does, to remove leftovers of failed pulls.
func (s *Store) CollectPending(used func() func(layer string) bool) error {
	s.mu.Lock()
	left := s.collectPending
	s.mu.Unlock()
	if !left {
		return nil
	}
	return s.Collect(used)
}

// Collect removes layers that no image and no container uses. While images or containers are being
// created, it does nothing and leaves the work to CollectPending. used is called when no layers can be
// added any more; it returns a function that reports whether containers use a layer. It must not
// call the store.
func (s *Store) Collect(used func() func(layer string) bool) error {
	layers, err := s.layers.list()
	if err != nil {
		return err
	}
	s.mu.Lock()
	keep := map[string]bool{}
	for _, image := range s.images {
		for _, layer := range image.Layers {
			keep[layer] = true
		}
	}
	removed, done := s.layers.detach(layers, keep, used)
	s.collectPending = !done
	s.mu.Unlock()
	var errs []error
	for _, dir := range removed {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing layer: %w", err))
		}
	}
	return errors.Join(errs...)
}

// diskFull replaces an error that means that the disk is full by one that names the directory of the
// store, and not a temporary file in it, so that all attempts return the same error. Layers that were
// created for the image are then removed by CollectPending.
func (s *Store) diskFull(err error) error {
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	s.log.Debug("disk of image store is full", "err", err)
	s.mu.Lock()
	s.collectPending = true
	s.mu.Unlock()
	return fmt.Errorf("not enough disk space in %s: %w", string(s.storeDir), unix.ENOSPC)
}

// Hold prevents Collect from removing layers while an image or a container is created. The caller
// must call the returned function afterwards.
func (s *Store) Hold() func() { return s.layers.hold() }

// Usage is the disk usage of a directory.
type Usage struct{ Bytes, Inodes uint64 }

// Usage measures the disk usage of the store by walking it.
func (s *Store) Usage() (Usage, error) { return DiskUsage(string(s.storeDir)) }

// DiskUsage measures a directory. Files with several hard links count once.
func DiskUsage(root string) (Usage, error) {
	var u Usage
	seen := map[uint64]bool{}
	err := filepath.WalkDir(root, func(file string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(file, &st)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		u.Bytes += uint64(st.Blocks) * 512
		u.Inodes++
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("measuring disk usage of %s: %w", root, err)
	}
	return u, nil
}
