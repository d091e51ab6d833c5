package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	root string
	log  *slog.Logger

	mu     sync.Mutex // guards the fields below
	images map[string]*Image
	names  map[string]string // normalized reference to ID
	// work contains an entry for each layer that is being unpacked, so that concurrent pulls share
	// it, and for each Hold.
	work map[string]*layerWork
	// inspected are the layers that were inspected or are queued, see Inspect.
	inspected map[string]bool
	queue     []string
	// collectPending is true if unused layers may exist, see CollectPending.
	collectPending bool

	// inspectionQueued wakes Inspect.
	inspectionQueued chan struct{}
}

type layerWork struct {
	done chan struct{}
	err  error
}

// Open opens or creates the store in the directory root and removes partial data left by a crash. A
// nil log means slog's default.
func Open(root string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.Default()
	}
	s := &Store{root: root, log: log, images: map[string]*Image{}, names: map[string]string{}, work: map[string]*layerWork{},
		inspected: map[string]bool{}, inspectionQueued: make(chan struct{}, 1), collectPending: true}
	if err := os.RemoveAll(s.path("tmp")); errors.Is(err, unix.EROFS) {
		log.Warn("image store is on a read-only file system", "err", err)
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
			log.Warn("ignoring damaged image record", "file", entry.Name(), "err", err)
			continue
		}
		if !s.hasAllLayers(image) {
			log.Warn("ignoring image with missing layers", "image", image.ID)
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

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

// LayerDir returns the directory with a layer's files.
func (s *Store) LayerDir(layer string) string { return s.path("layers", layer, "fs") }

func (s *Store) hasAllLayers(image *Image) bool {
	return !slices.ContainsFunc(image.Layers, func(layer string) bool { return !s.hasLayer(layer) })
}

func (s *Store) hasLayer(layer string) bool {
	info, err := os.Stat(s.LayerDir(layer))
	if err != nil || !info.IsDir() {
		return false
	}
	want, err := os.ReadFile(s.path("layers", layer, countFile))
	if err != nil {
		return true // created by an earlier version, or not by a pull
	}
	return strings.TrimSpace(string(want)) == fmt.Sprint(topEntries(s.LayerDir(layer)))
}

// countFile is the name of the file next to a layer's files that contains the number of its
// top-level entries. This is a cheap check for files that were deleted, for example by a file
// system repair.
const countFile = "count"

func topEntries(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	return len(entries)
}

// claimNames assigns the image's names to it and removes them from other images. It returns the
// other images that lost names; the caller writes their records if necessary. The caller must hold
// mu.
func (s *Store) claimNames(image *Image) []*Image {
	var previousOwners []*Image
	for _, name := range append(slices.Clone(image.Tags), image.Digests...) {
		if owner, ok := s.names[name]; ok && owner != image.ID {
			if other := s.images[owner]; other != nil {
				other = other.clone()
				other.Tags = slices.DeleteFunc(other.Tags, func(t string) bool { return t == name })
				other.Digests = slices.DeleteFunc(other.Digests, func(t string) bool { return t == name })
				s.images[owner] = other
				previousOwners = append(previousOwners, other)
			}
		}
		s.names[name] = image.ID
	}
	return previousOwners
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
	if err := s.write(image); err != nil {
		return nil, err
	}
	s.images[image.ID] = image
	for _, other := range s.claimNames(image) {
		if err := s.write(other); err != nil {
			return nil, err
		}
	}
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

func (s *Store) write(image *Image) error {
	data, err := json.Marshal(image)
	if err != nil {
		return fmt.Errorf("recording image %s: %w", image.ID, err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: s.record(image.ID), Data: data, Mode: 0o600, SkipSync: image.BuiltIn}); err != nil {
		return fmt.Errorf("recording image %s: %w", image.ID, err)
	}
	return nil
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
	if s.hasAllLayers(image) {
		s.queueInspection(image.Layers)
		return image, nil
	}
	s.log.Warn("removing image with missing layers", "image", image.ID)
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
// being created. After Open it always does, to remove leftovers of failed pulls.
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
	entries, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return fmt.Errorf("listing layers: %w", err)
	}
	s.mu.Lock()
	keep := map[string]bool{}
	for _, image := range s.images {
		for _, layer := range image.Layers {
			keep[layer] = true
		}
	}
	var removed []string
	// Layers of a pull in progress are not in an image yet.
	s.collectPending = len(s.work) > 0
	if !s.collectPending {
		used := used()
		for _, entry := range entries {
			layer := entry.Name()
			if keep[layer] || used(layer) {
				continue
			}
			// Containers refer to a damaged layer by its previous name.
			if former, ok := strings.CutPrefix(layer, damagedPrefix); ok && used(former[:max(strings.LastIndexByte(former, '-'), 0)]) {
				continue
			}
			// The rename removes the layer atomically.
			tmp := s.path("tmp", "gone-"+layer)
			if err := os.Rename(s.path("layers", layer), tmp); err == nil {
				removed = append(removed, tmp)
			}
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, dir := range removed {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing layer: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Hold prevents Collect from removing layers while an image or a container is created. The caller
// must call the returned function afterwards.
func (s *Store) Hold() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("hold %p", new(int))
	for s.work[key] != nil {
		key += "+"
	}
	s.work[key] = &layerWork{done: make(chan struct{})}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.work, key)
	}
}

// layerName returns the directory name for a diff ID. It is short, because the names of all layers
// of a container must fit in one page.
func layerName(diffID string) string {
	name := strings.TrimPrefix(diffID, "sha256:")
	return name[:min(len(name), 32)]
}

// makeLayer creates a layer if it does not exist. fill writes its files to a directory. If several
// callers create the same layer, the first one does the work and the others wait.
func (s *Store) makeLayer(ctx context.Context, layer string, durable bool, fill func(dir string) error) error {
	for {
		if s.hasLayer(layer) {
			return nil
		}
		s.mu.Lock()
		if other := s.work[layer]; other != nil {
			s.mu.Unlock()
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
		s.work[layer] = work
		s.mu.Unlock()
		work.err = s.fillLayer(layer, durable, fill)
		s.mu.Lock()
		delete(s.work, layer)
		s.mu.Unlock()
		close(work.done)
		return work.err
	}
}

func (s *Store) fillLayer(layer string, durable bool, fill func(dir string) error) (err error) {
	tmp, err := os.MkdirTemp(s.path("tmp"), "layer-")
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
	if err := s.moveAside(layer); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path("layers", layer)); err != nil {
		return fmt.Errorf("committing layer: %w", err)
	}
	return nil
}

// damagedPrefix is the name prefix of layers that moveAside has moved. The suffix is a timestamp.
const damagedPrefix = "damaged-"

// moveAside renames a damaged layer so that it can be created again. Collect removes it when no
// container uses it.
func (s *Store) moveAside(layer string) error {
	err := os.Rename(s.path("layers", layer), s.path("layers", fmt.Sprintf("%s%s-%d", damagedPrefix, layer, time.Now().UnixNano())))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replacing damaged layer: %w", err)
	}
	return nil
}

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

// Usage is the disk usage of a directory.
type Usage struct{ Bytes, Inodes uint64 }

// Usage measures the disk usage of the store by walking it.
func (s *Store) Usage() (Usage, error) { return DiskUsage(s.root) }

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
