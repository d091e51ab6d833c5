package podlogs

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Rotation configures when the logs of containers are rotated and how many rotated files are kept.
type Rotation struct {
	// MaxSize is the maximum size of a file in bytes. 0 or less disables rotation.
	MaxSize int64
	// MaxFiles is the maximum number of files per container, including the current one. It is at
	// least 2.
	MaxFiles int
	// Now returns the current time. It is time.Now except in tests.
	Now func() time.Time
}

// gz is the suffix of compressed rotated log files, and temp that of files whose compression has not finished.
const (
	gz   = ".gz"
	temp = ".tmp"
)

// Rotate rotates the log at path if it is larger than MaxSize: it compresses old files, removes the oldest
// ones, renames the current file, and calls reopen, which makes the runtime write to a new file. It returns
// true if it has rotated the log or must be called again soon. If old files cannot be compressed, for example
// because the disk is full, it rotates nevertheless, so that the log does not grow without limit, and also
// returns the error; the next rotation compresses them. It must not be called concurrently for the same path.
func (r Rotation) Rotate(path string, reopen func() error) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		// An earlier rotation was interrupted: the runtime still writes to the renamed file.
		return true, reopen()
	}
	if err != nil {
		return false, fmt.Errorf("rotating log: %w", err)
	}
	if r.MaxSize <= 0 || info.Size() < r.MaxSize {
		return false, nil
	}
	old, err := rotated(path)
	if err != nil {
		return false, err
	}
	// The limit includes the current file and the one that it is renamed to.
	for len(old) > max(r.MaxFiles-2, 0) {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("removing old log: %w", err)
		}
		old = old[1:]
	}
	var errs []error
	for _, f := range old {
		if !strings.HasSuffix(f, gz) {
			errs = append(errs, compress(f))
		}
	}
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	rotated := path + "." + now().Format("20060102-150405")
	for _, name := range []string{rotated, rotated + gz} {
		if _, err := os.Lstat(name); err == nil {
			return true, nil // rotated within this second; do not overwrite that file
		}
	}
	if err := os.Rename(path, rotated); err != nil {
		return false, errors.Join(append(errs, fmt.Errorf("rotating log: %w", err))...)
	}
	if err := reopen(); err != nil {
		if back := os.Rename(rotated, path); back != nil {
			err = errors.Join(err, back)
		}
		return false, errors.Join(append(errs, fmt.Errorf("reopening log: %w", err))...)
	}
	return true, errors.Join(errs...)
}

// rotated returns the paths of the rotated files of the log at path, oldest first. It removes incomplete
// compressed files of an interrupted kubelet.
func rotated(path string) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, fmt.Errorf("listing old logs: %w", err)
	}
	var out []string
	for _, f := range all {
		if strings.HasSuffix(f, temp) {
			// A previous process was interrupted.
			if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("removing incomplete log: %w", err)
			}
			continue
		}
		out = append(out, f)
	}
	slices.Sort(out)
	return out, nil
}

// compress replaces the file at path by a compressed one with the suffix gz. After an error the original file
// remains.
func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("compressing log: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(path+temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("compressing log: %w", err)
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	err = errors.Join(err, z.Close(), out.Close())
	if err == nil {
		err = os.Rename(path+temp, path+gz)
	}
	if err != nil {
		// An incomplete file must not occupy space until the next rotation.
		return errors.Join(fmt.Errorf("compressing log: %w", err), os.Remove(path+temp))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("compressing log: %w", err)
	}
	return nil
}
