package manifestdir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxFileSize is in bytes. maxFiles limits the files of the whole directory. Files above a limit are errors.
const (
	maxFileSize = 16 << 20
	maxFiles    = 1000
)

// errNoDirectory is the error of scan if the directory does not exist.
var errNoDirectory = errors.New("the directory does not exist")

// wholeDirectory is the name under which an error of the directory itself is reported, for example that it cannot be
// read. Errors of a file or a kustomization are reported under its path in the directory.
const wholeDirectory = "."

// unit is a file or a kustomization of the directory. It is applied and pruned as a whole.
type unit struct {
	// name is the path relative to the directory.
	name string
	// kustomization reports whether the unit is a directory with a kustomization.
	kustomization bool
	// deleted reports whether the unit does not exist anymore. The fields below are empty then.
	deleted bool
	// files are the contents by path relative to the directory. A file that is not a kustomization is the only one.
	files map[string][]byte
	// hash identifies the contents or the error. A unit with the same hash is not applied again.
	hash string
	// err is the reason why the unit could not be read.
	err error
}

// kustomizationFiles are the names by which kustomize finds a kustomization.
var kustomizationFiles = []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}

// scan reads all units, sorted by their names. It calls watch with each directory before it reads it, so that no later
// change is missed. A unit that cannot be read has an error. The error is errNoDirectory if the directory does not
// exist. #skip type scanner struct >> files int
func (a *Applier) scan(watch func(dir string)) ([]unit, error) {
	if _, err := os.Lstat(a.cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, errNoDirectory
	}
	// A Root rejects symbolic links that leave the directory.
	root, err := os.OpenRoot(a.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of manifests: %w", err)
	}
	defer func() { _ = root.Close() }()
	s := scanner{root: root, watch: func(rel string) { watch(filepath.Join(a.cfg.Dir, rel)) }}
	if err := s.directory(wholeDirectory); err != nil {
		return nil, err
	}
	slices.SortFunc(s.units, func(a, b unit) int { return strings.Compare(a.name, b.name) })
	return s.units, nil
}

// scanner reads the units below a directory.
type scanner struct {
	root *os.Root
	// watch is called with the path of each directory, relative to root, before the directory is read.
	watch func(rel string)
	units []unit
	files int // that have been read
}

// directory adds the units in a directory and its subdirectories: YAML and JSON files, and each subdirectory with a
// kustomization file as a whole. Names that begin with a dot are ignored. It only returns errors of the directory
// itself.
func (s *scanner) directory(rel string) error {
	s.watch(rel)
	entries, err := s.list(rel)
	if err != nil {
		return err
	}
	if rel != wholeDirectory && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(kustomizationFiles, e.Name()) }) {
		u := unit{name: rel, kustomization: true, files: map[string][]byte{}}
		u.err = s.tree(rel, entries, u.files)
		s.add(u)
		return nil
	}
	for _, e := range entries {
		name := path.Join(rel, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			if err := s.directory(name); err != nil {
				s.add(unit{name: name, err: err})
			}
		case slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)):
			u := unit{name: name}
			data, err := s.read(name)
			u.files, u.err = map[string][]byte{name: data}, err
			if !errors.Is(err, fs.ErrNotExist) { // deleted in the meantime
				s.add(u)
			}
		}
	}
	return nil
}

// tree reads all files of a kustomization into files, including those in its subdirectories.
func (s *scanner) tree(rel string, entries []fs.DirEntry, files map[string][]byte) error {
	for _, e := range entries {
		name := path.Join(rel, e.Name())
		if e.IsDir() {
			s.watch(name)
			below, err := s.list(name)
			if err == nil {
				err = s.tree(name, below, files)
			}
			if err != nil {
				return err
			}
			continue
		}
		data, err := s.read(name)
		if err != nil {
			return err
		}
		files[name] = data
	}
	return nil
}

// add computes the hash of a unit and adds it.
func (s *scanner) add(u unit) {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(u.files)) {
		fmt.Fprintf(sum, "%d %s %d ", len(name), name, len(u.files[name]))
		sum.Write(u.files[name])
	}
	if u.err != nil {
		fmt.Fprint(sum, u.err)
	}
	u.hash = hex.EncodeToString(sum.Sum(nil))
	s.units = append(s.units, u)
}

// list returns the entries of a directory. It returns an error if users other than root can write the directory.
func (s *scanner) list(rel string) ([]fs.DirEntry, error) {
	f, err := s.root.Open(rel)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkOwner(f, rel); err != nil {
		return nil, err
	}
	return f.ReadDir(-1)
}

// read returns the content of a regular file. It returns an error for other files, for a file that users other than
// root can write, and above the limits of size and number.
func (s *scanner) read(rel string) ([]byte, error) {
	if s.files++; s.files > maxFiles {
		return nil, fmt.Errorf("more than %d files", maxFiles)
	}
	f, err := s.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for the writer of a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > maxFileSize:
		return nil, fmt.Errorf("larger than %d MiB", maxFileSize>>20)
	}
	if err := checkOwner(f, rel); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxFileSize))
}

// checkOwner returns an error if users other than root and the user of this process can write a file or directory:
// its objects would be applied with the permissions of the administrator.
func checkOwner(f *os.File, rel string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s has no owner", rel)
	}
	if int(sys.Uid) != os.Geteuid() && sys.Uid != 0 {
		return fmt.Errorf("%s belongs to user %d, who could change objects of the cluster: run chown root", rel, sys.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is writable by other users than root, who could change objects of the cluster: run chmod go-w", rel)
	}
	return nil
}
