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

// Rotation bounds the logs of a container.
type Rotation struct {
	// MaxSize of a file in bytes; 0 or less: no rotation.
	MaxSize int64
	// MaxFiles of a container, the one being written among them; at least 2.
	MaxFiles int
	// Now is time.Now but in tests.
	Now func() time.Time
}

const (
	gz   = ".gz"
	temp = ".tmp"
)

// Rotate makes room if the log at path is too large: old files are compressed,
// the oldest removed, and the current one renamed; then reopen, which makes
// the runtime write to a new file. It tells whether it rotated, or is to be called
// again soon. It is not for several goroutines with one path.
func (r Rotation) Rotate(path string, reopen func() error) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		// An earlier rotation was cut short: the runtime still writes to the
		// renamed file.
		return true, reopen()
	}
	if err != nil {
		return false, fmt.Errorf("rotating a log: %w", err)
	}
	if r.MaxSize <= 0 || info.Size() < r.MaxSize {
		return false, nil
	}
	old, err := rotated(path)
	if err != nil {
		return false, err
	}
	// Two places are for the current file and the one it becomes.
	for len(old) > max(r.MaxFiles-2, 0) {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("removing an old log: %w", err)
		}
		old = old[1:]
	}
	for _, f := range old {
		if strings.HasSuffix(f, gz) {
			continue
		}
		if err := compress(f); err != nil {
			return false, err
		}
	}
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	rotated := path + "." + now().Format("20060102-150405")
	for _, name := range []string{rotated, rotated + gz} {
		if _, err := os.Lstat(name); err == nil {
			return true, nil // it has just been: not over what it was then
		}
	}
	if err := os.Rename(path, rotated); err != nil {
		return false, fmt.Errorf("rotating a log: %w", err)
	}
	if err := reopen(); err != nil {
		if back := os.Rename(rotated, path); back != nil {
			err = errors.Join(err, back)
		}
		return false, fmt.Errorf("reopening a log: %w", err)
	}
	return true, nil
}

// rotated returns the old files of the log at path, the oldest first.
func rotated(path string) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, fmt.Errorf("listing old logs: %w", err)
	}
	var out []string
	for _, f := range all {
		if strings.HasSuffix(f, temp) {
			// Left by a crash.
			if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("removing an unfinished log: %w", err)
			}
			continue
		}
		out = append(out, f)
	}
	slices.Sort(out)
	return out, nil
}

func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("compressing a log: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(path+temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("compressing a log: %w", err)
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	err = errors.Join(err, z.Close(), out.Close())
	if err == nil {
		err = os.Rename(path+temp, path+gz)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("compressing a log: %w", err)
	}
	return nil
}
