// Package atomicfile writes small files atomically: after a crash at any time, each file has either
// its old or its new content.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// File is a file that Write writes.
type File struct {
	Path string
	Data []byte
	Mode fs.FileMode
	// Owner is the file's owner. If it is nil, the file belongs to the user of the process.
	Owner *Owner
	// SkipSync is set for files that are not synced before the rename: after a power failure such a file
	// can be empty or missing, and its owner must recreate it. All other files are on disk when Write
	// returns.
	SkipSync bool
}

// Owner is the user ID and group ID to which a file belongs.
type Owner struct{ UID, GID int }

// Write writes all files. It first writes each file under a temporary name in the same directory,
// then syncs all of them together, so that the filesystem needs one journal commit instead of one
// per file, then renames them in argument order and syncs their directories. Directories must
// exist. After an error some files may have been replaced, but each one completely.
func Write(files ...File) error {
	tmps := make([]string, 0, len(files))
	defer func() {
		for _, name := range tmps {
			if name != "" {
				// A temporary file that cannot be removed is harmless.
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
		if !files[i].SkipSync {
			durable = append(durable, tmps[i])
			dirs[filepath.Dir(files[i].Path)] = true
		}
	}
	if err := syncAll(durable); err != nil {
		return err
	}
	for i := range files {
		if err := os.Rename(tmps[i], files[i].Path); err != nil {
			return fmt.Errorf("replacing file: %w", err)
		}
		tmps[i] = ""
	}
	names := make([]string, 0, len(dirs))
	for dir := range dirs {
		names = append(names, dir)
	}
	return syncAll(names)
}

// writeTemp writes f, with its mode and owner, to a temporary file in the same directory and
// returns the name of that file. It also returns the name with an error if the caller must remove
// the file.
func writeTemp(f *File) (string, error) {
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".*")
	if err != nil {
		return "", writeError(f, err)
	}
	_, err = tmp.Write(f.Data)
	if err == nil {
		// Set the mode only after the content is written, so that other users cannot read a
		// partially written file.
		err = tmp.Chmod(f.Mode)
	}
	if err == nil && f.Owner != nil {
		err = tmp.Chown(f.Owner.UID, f.Owner.GID)
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		err = writeError(f, err)
	}
	return tmp.Name(), err
}

// writeError returns err with the path of f instead of the temporary name, which would differ with
// each attempt.
func writeError(f *File, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	return fmt.Errorf("writing %s: %w", f.Path, err)
}

// syncAll syncs files and directories to disk, in parallel, and returns the first error.
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

// syncOne syncs one file or directory to disk.
func syncOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
