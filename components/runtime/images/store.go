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

// Store stores images and their unpacked layers below a directory. Its methods are safe for concurrent use. The
// directory must be used by one process only.
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

// Open opens or creates the store in the directory root. It removes partial data left by a crash and ignores images
// with missing layers or damaged records. A nil log means slog's default.
func Open(root string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.Default()
	}
	dir := storeDir(root)
	layers := newLayerStore(dir)
	s := &Store{storeDir: dir, log: log, layers: layers, inspector: newInspector(layers, log),
		images: map[string]*Image{}, names: map[string]string{}, collectPending: true}
	if err := os.RemoveAll(s.path("tmp")); errors.Is(err, unix.EROFS) {
		log.Warn("image store is on a read-only file system; images cannot be pulled or removed: mount the file system writable and restart the container runtime", "directory", dir, "err", err)
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
			log.Warn("metadata file of image is damaged; the image is ignored, and the kubelet pulls it again for the next container", "file", entry.Name(), "err", err)
			continue
		}
		if !s.layers.hasAll(image) {
			log.Warn("layers of image are missing on disk; the image is ignored, and the kubelet pulls it again for the next container", "image", image.ID, "names", image.names())
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

// LayerDir returns the directory with the files of a layer, for an overlay. layer is a name in Image.Layers or from
// MountPoints.
func (s *Store) LayerDir(layer string) string { return s.layers.filesOf(layer) }

// Inspect verifies the layers of images that Verify has returned, each once, until ctx is done. Run it in the
// background, because reading the file metadata of a layer takes a second or more on a cold disk. A modified layer is
// moved aside: running containers keep it, and its images are pulled again for the next container.
func (s *Store) Inspect(ctx context.Context) { s.inspector.run(ctx) }

// claimNames makes the names of the image refer to it, and removes them from the images that had them before. It
// changes only the state in memory. The caller must hold mu.
func (s *Store) claimNames(image *Image) {
	for _, other := range s.previousOwners(image) {
		s.images[other.ID] = other
	}
	for _, name := range image.names() {
		s.names[name] = image.ID
	}
}

// previousOwners returns copies, without these names, of the other images that have names of the image now. The caller
// must hold mu.
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

// put stores an image, on disk first, and moves its names from other images to it. If the store already has an
// image with this ID, the names and the pinning of that image are kept.
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

// union returns the sorted strings in a or b, each once.
func union(a, b []string) []string {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// record returns the path of the file that describes the image with this ID.
func (s *Store) record(id string) string {
	return s.path("images", strings.TrimPrefix(id, "sha256:")+".json")
}

// write writes the files that describe images to disk. If one cannot be written, for example because the disk is
// full, it changes none.
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

// Get returns an image by its ID, with or without "sha256:", or by a reference in any form. It does not check that the
// layers exist, see Verify. It returns ErrNotFound if the store does not contain the image.
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

// Verify returns an image like Get, after it has checked that all its layers exist and have their top-level entries. An
// image that fails the check is removed from the store, so that the kubelet pulls it again, and Verify returns
// ErrNotFound. The layers are queued for the thorough check of Inspect.
func (s *Store) Verify(ref string) (*Image, error) {
	image, err := s.Get(ref)
	if err != nil {
		return nil, err
	}
	if s.layers.hasAll(image) {
		s.inspector.add(image.Layers)
		return image, nil
	}
	s.log.Warn("layers of image are missing on disk; the image is removed, and the kubelet pulls it again for the container", "image", image.ID, "names", image.names())
	if err := s.forget(image); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("image %q has missing layers: %w", ref, ErrNotFound)
}

// forget deletes the record and the names of an image. Its layers stay until Collect. An image without a record
// is no error.
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

// Remove removes an image with all its names, and the layers that are not used by other images or containers. used is
// that of Collect. It is not an error if the image does not exist.
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

// CollectPending calls Collect if unused layers are likely to exist: after Open, after a Collect that was skipped
// because images or containers were being created, and after the disk was full while an image was created. used is that
// of Collect.
func (s *Store) CollectPending(used func() func(layer string) bool) error {
	s.mu.Lock()
	left := s.collectPending
	s.mu.Unlock()
	if !left {
		return nil
	}
	return s.Collect(used)
}

// Collect removes layers that no image and no container uses. While images or containers are being created, it does
// nothing and leaves the work to CollectPending. used returns a function that reports whether a container uses a layer;
// it is called when no layers can be added any more. Neither function may call the store.
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

// diskFull returns err unless it means that the disk is full. In that case it returns an error that names the directory
// of the store and not a temporary file in it, so that all attempts return the same error. It also marks layers that
// were already created for the image for CollectPending.
func (s *Store) diskFull(err error) error {
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	s.log.Debug("pull or import of image failed because the disk of the image store is full; the client gets the error and decides about a retry", "err", err)
	s.mu.Lock()
	s.collectPending = true
	s.mu.Unlock()
	return fmt.Errorf("not enough disk space in %s: %w", string(s.storeDir), unix.ENOSPC)
}

// Hold prevents Collect from removing layers while an image or a container is created, because its layers are not used
// by an image or container yet. The caller must call the returned function afterwards.
func (s *Store) Hold() func() { return s.layers.hold() }

// Usage is the disk usage of a directory.
type Usage struct{ Bytes, Inodes uint64 }

// Usage measures the disk usage of the store. It reads the metadata of all files, so it may take long.
func (s *Store) Usage() (Usage, error) { return DiskUsage(string(s.storeDir)) }

// DiskUsage measures the disk usage of root and everything below it. Files with several hard links count once. Files
// that are deleted in the meantime are ignored.
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
