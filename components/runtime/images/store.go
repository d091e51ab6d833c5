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

	"hyperkube/internal/atomicfile"
)

// Store keeps images below one folder. Its methods are safe for several
// goroutines; one process owns the folder.
type Store struct {
	root string
	log  *slog.Logger

	mu     sync.Mutex // guards what follows
	images map[string]*Image
	names  map[string]string // normalised reference to ID
	// work holds a lock for each layer that is being unpacked, so that two
	// pulls share it.
	work map[string]*layerWork
	// inspected are layers that were, or are in queue to be, see Inspect.
	inspected map[string]bool
	queue     []string
	// left says that there may be layers that nobody needs, see CollectLeft.
	left bool

	// due wakes Inspect.
	due chan struct{}
}

type layerWork struct {
	done chan struct{}
	err  error
}

// Open opens or makes the store in the folder root, and removes what a crash
// left half made. A nil log is slog's default.
func Open(root string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.Default()
	}
	s := &Store{root: root, log: log, images: map[string]*Image{}, names: map[string]string{}, work: map[string]*layerWork{},
		inspected: map[string]bool{}, due: make(chan struct{}, 1), left: true}
	if err := os.RemoveAll(s.path("tmp")); errors.Is(err, unix.EROFS) {
		log.Warn("the image store is on a read-only disk", "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("clearing the image store: %w", err)
	}
	for _, dir := range []string{"tmp", "layers", "images"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("making the image store: %w", err)
		}
	}
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, fmt.Errorf("reading the image store: %w", err)
	}
	var found []*Image
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		data, err := os.ReadFile(s.path("images", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading the image store: %w", err)
		}
		image := &Image{}
		if err := json.Unmarshal(data, image); err != nil || image.ID == "" {
			log.Warn("an image record is damaged and left out", "file", entry.Name(), "error", err)
			continue
		}
		if !s.whole(image) {
			log.Warn("an image has lost layers and is left out", "image", image.ID)
			continue
		}
		found = append(found, image)
	}
	// A tag that moved when a crash came is in two records: the later counts.
	slices.SortFunc(found, func(a, b *Image) int { return a.Time.Compare(b.Time) })
	for _, image := range found {
		s.images[image.ID] = image
		s.takeNames(image)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

// LayerDir returns the folder that holds a layer's files.
func (s *Store) LayerDir(layer string) string { return s.path("layers", layer, "fs") }

func (s *Store) whole(image *Image) bool {
	return !slices.ContainsFunc(image.Layers, func(layer string) bool { return !s.hasLayer(layer) })
}

func (s *Store) hasLayer(layer string) bool {
	info, err := os.Stat(s.LayerDir(layer))
	if err != nil || !info.IsDir() {
		return false
	}
	want, err := os.ReadFile(s.path("layers", layer, countFile))
	if err != nil {
		return true // made before layers were counted, or not by a pull
	}
	return strings.TrimSpace(string(want)) == fmt.Sprint(topEntries(s.LayerDir(layer)))
}

// countFile, beside a layer's files, says how many there are at its top:
// enough to tell when a disk's repair, or someone's tidying, has taken them.
const countFile = "count"

func topEntries(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	return len(entries)
}

// takeNames gives the image its names, taking them from others. The caller
// holds the lock, and writes the others' records if it must last. It returns
// the others that lost names.
func (s *Store) takeNames(image *Image) []*Image {
	var losers []*Image
	for _, name := range append(slices.Clone(image.Tags), image.Digests...) {
		if owner, ok := s.names[name]; ok && owner != image.ID {
			if other := s.images[owner]; other != nil {
				other = other.clone()
				other.Tags = slices.DeleteFunc(other.Tags, func(t string) bool { return t == name })
				other.Digests = slices.DeleteFunc(other.Digests, func(t string) bool { return t == name })
				s.images[owner] = other
				losers = append(losers, other)
			}
		}
		s.names[name] = image.ID
	}
	return losers
}

// put records an image, joining its names with those it has already.
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
	for _, loser := range s.takeNames(image) {
		if err := s.write(loser); err != nil {
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
	if err := atomicfile.Write(atomicfile.File{Path: s.record(image.ID), Data: data, Mode: 0o600, Remakeable: image.BuiltIn}); err != nil {
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

// Get finds an image by ID, with or without "sha256:", or by a reference in
// any form. It is ErrNotFound when there is none.
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

// Verify finds an image as Get does and sees that all its layers are there. An
// image that has lost one, or whose layer is empty though it was not when it
// was made, is forgotten, so that it is pulled again: it is ErrNotFound. Layers
// that it finds for the first time are looked at more closely later, see
// Inspect.
func (s *Store) Verify(ref string) (*Image, error) {
	image, err := s.Get(ref)
	if err != nil {
		return nil, err
	}
	if s.whole(image) {
		s.wantInspected(image.Layers)
		return image, nil
	}
	s.log.Warn("an image has lost layers and is forgotten", "image", image.ID)
	if err := s.forget(image); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("image %q has lost layers: %w", ref, ErrNotFound)
}

// forget removes the record and the names of an image.
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

// Remove removes an image with all its names, and the layers that no other
// image has and containers do not use, see Collect. No such image is no error.
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

// CollectLeft does what Collect could not do because something was being put
// together, and once what a store before this one has left of pulls that failed.
func (s *Store) CollectLeft(used func() func(layer string) bool) error {
	s.mu.Lock()
	left := s.left
	s.mu.Unlock()
	if !left {
		return nil
	}
	return s.Collect(used)
}

// Collect removes the layers that no image has and containers do not use; while
// images or containers are being put together it is left to CollectLeft. used, which
// must not call the store, returns what tells which layers containers use: it is
// called when none of them can come any more.
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
	var doomed []string
	// Layers of a pull that goes on are in no image yet.
	s.left = len(s.work) > 0
	if !s.left {
		used := used()
		for _, entry := range entries {
			layer := entry.Name()
			if keep[layer] || used(layer) {
				continue
			}
			// Who lives on a damaged one knows it by its former name.
			if former, ok := strings.CutPrefix(layer, damagedPrefix); ok && used(former[:max(strings.LastIndexByte(former, '-'), 0)]) {
				continue
			}
			// Under another name it is gone for everybody at once.
			tmp := s.path("tmp", "gone-"+layer)
			if err := os.Rename(s.path("layers", layer), tmp); err == nil {
				doomed = append(doomed, tmp)
			}
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, dir := range doomed {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing a layer: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Hold keeps Collect from taking layers while an image or a container is put
// together. The returned function ends it.
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

// layerName is the folder's name for a layer with this diff ID: short, because
// the names of all layers of a container must fit one page.
func layerName(diffID string) string {
	name := strings.TrimPrefix(diffID, "sha256:")
	return name[:min(len(name), 32)]
}

// makeLayer makes a layer unless it is there: fill writes it into a folder. Of
// several callers for one layer the first works and the others wait for it.
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
			continue // its caller may have given up; ours has not
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
		return fmt.Errorf("making a layer: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	dir := filepath.Join(tmp, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	if err := fill(dir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, countFile), fmt.Appendln(nil, topEntries(dir)), 0o600); err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	if durable {
		people, err := census(context.Background(), dir)
		if err == nil {
			err = os.WriteFile(filepath.Join(tmp, censusFile), []byte(people+"\n"), 0o600)
		}
		if err != nil {
			return fmt.Errorf("making a layer: %w", err)
		}
		// One call for all its files, however many.
		if err := syncFS(tmp); err != nil {
			return err
		}
	}
	if err := s.moveAside(layer); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path("layers", layer)); err != nil {
		return fmt.Errorf("committing a layer: %w", err)
	}
	return nil
}

// damagedPrefix begins the names of layers that moveAside has moved; the time
// follows the layer's own.
const damagedPrefix = "damaged-"

// moveAside makes room for a layer where a damaged one is, which Collect takes
// away: a container may live on what is left of it.
func (s *Store) moveAside(layer string) error {
	err := os.Rename(s.path("layers", layer), s.path("layers", fmt.Sprintf("%s%s-%d", damagedPrefix, layer, time.Now().UnixNano())))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replacing a damaged layer: %w", err)
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
		return fmt.Errorf("writing a layer to the disk: %w", err)
	}
	return nil
}

// Usage is what the store takes of its filesystem.
type Usage struct{ Bytes, Inodes uint64 }

// Usage measures the store by walking it.
func (s *Store) Usage() (Usage, error) { return DiskUsage(s.root) }

// DiskUsage measures a folder; each file counts once, however many links it
// has.
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
		return Usage{}, fmt.Errorf("measuring %s: %w", root, err)
	}
	return u, nil
}
