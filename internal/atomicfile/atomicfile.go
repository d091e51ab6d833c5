// Package atomicfile writes small files so that after a crash at any instant
// each of them has either its old content or its new one.
package atomicfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// File is one file to be written.
type File struct {
	Path string
	Data []byte
	Mode fs.FileMode
	// Owner is who the file belongs to; nil means the process's user.
	Owner *Owner
	// Remakeable files are not synced before they take their name: after a
	// power failure one may be empty or missing, and its owner makes it
	// again. All others are on the disk when Write returns.
	Remakeable bool
}

// Owner is a user and a group.
type Owner struct{ UID, GID int }

// Write writes all files. Each first gets its content under a temporary name
// beside its path; then all are synced at once, so that the filesystem needs
// one journal commit and not one for each; then they take their names in the
// order given, and their directories are synced. Directories must exist. On an
// error some files may have been replaced, each of them whole.
func Write(files ...File) error {
	tmps := make([]string, 0, len(files))
	defer func() {
		for _, name := range tmps {
			if name != "" {
				// What cannot be removed is left over, which does no harm.
				_ = os.Remove(name)
			}
		}
	}()
	for i := range files {
		name, err := writeTemp(&files[i])
		if name != "" {
			tmps = append(tmps, name)
		}
		if err != nil {
			return err
		}
	}

	var durable []string
	dirs := map[string]bool{}
	for i := range files {
		if !files[i].Remakeable {
			durable = append(durable, tmps[i])
			dirs[filepath.Dir(files[i].Path)] = true
		}
	}
	if err := syncAll(durable); err != nil {
		return err
	}
	for i := range files {
		if err := os.Rename(tmps[i], files[i].Path); err != nil {
			return fmt.Errorf("replacing a file: %w", err)
		}
		tmps[i] = ""
	}
	names := make([]string, 0, len(dirs))
	for dir := range dirs {
		names = append(names, dir)
	}
	return syncAll(names)
}

// writeTemp returns the temporary file's name even with an error, when there
// is something to remove.
func writeTemp(f *File) (string, error) {
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".*")
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", f.Path, err)
	}
	_, err = tmp.Write(f.Data)
	if err == nil {
		// Not before the content: a file that others may read must not be
		// theirs to read while it is half written.
		err = tmp.Chmod(f.Mode)
	}
	if err == nil && f.Owner != nil {
		err = tmp.Chown(f.Owner.UID, f.Owner.GID)
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		err = fmt.Errorf("writing %s: %w", f.Path, err)
	}
	return tmp.Name(), err
}

// syncAll syncs files and directories at the same time.
func syncAll(paths []string) error {
	errs := make([]error, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() { errs[i] = syncOne(path) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("syncing to disk: %w", err)
		}
	}
	return nil
}

func syncOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
