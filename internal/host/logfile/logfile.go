// Package logfile rotates the log of a process whose standard error is a file, as it is without a service manager. Crashes of
// the Go runtime and output of libraries go to the same file, because rotation replaces the file behind the descriptors of
// standard output and standard error.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits determine when a file is rotated, and how many rotated files are kept.
type Limits struct {
	// Size is the size in bytes that a file does not exceed, unless output bypasses the File.
	Size int64
	// Age is the time from the creation of a file until it is rotated by the next write.
	Age time.Duration
	// Kept is the number of rotated files that are kept.
	Kept int
}

// Defaults are the limits of the logs of all processes: at most 100 MB each.
func Defaults() Limits { return Limits{Size: 20_000_000, Age: 7 * 24 * time.Hour, Kept: 4} }

// timeFormat is the suffix of rotated files, in UTC, so that their order by name is that by time.
const timeFormat = "20060102-150405.000000"

// retryAfter is how much is written after a failed rotation before the next attempt.
const retryAfter = 1_000_000

// File is standard error, if that is a log file. Its methods are safe for concurrent use.
type File struct {
	path   string
	limits Limits
	now    func() time.Time

	mu      sync.Mutex // guards the fields below
	size    int64
	created time.Time
	// retry is the size at which a failed rotation is tried again.
	retry int64
	// rotated is the time in the name of the last rotated file.
	rotated time.Time
}

// Stderr returns the writer of a process for its log. If standard error is the file path, the writer rotates the file.
// Otherwise it is standard error, for example a terminal, the journal, or a file of the user.
func Stderr(path string, limits Limits) io.Writer {
	f := &File{path: path, limits: limits, now: time.Now}
	if err := f.attach(); err != nil {
		return os.Stderr
	}
	return f
}

// errOther is the error of attach if standard error is not the log file.
var errOther = errors.New("standard error is not the log file")

// attach reads the size and the age of the file. It returns errOther if standard error is not the file.
func (f *File) attach() error {
	var log, output unix.Stat_t
	if err := unix.Stat(f.path, &log); err != nil {
		return err
	}
	if err := unix.Fstat(unix.Stderr, &output); err != nil {
		return err
	}
	if log.Dev != output.Dev || log.Ino != output.Ino || output.Mode&unix.S_IFMT != unix.S_IFREG {
		return errOther
	}
	f.size, f.created = output.Size, f.now()
	// Not all file systems know the time of the creation.
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, f.path, 0, unix.STATX_BTIME, &x); err == nil && x.Mask&unix.STATX_BTIME != 0 {
		f.created = time.Unix(x.Btime.Sec, int64(x.Btime.Nsec))
	}
	return nil
}

// Write appends p to the file. Before, it rotates the file if p does not fit or the file is too old. If that fails, it
// appends an error to the file and continues with it.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	full := f.size > 0 && f.size+int64(len(p)) > f.limits.Size
	old := f.size > 0 && f.now().Sub(f.created) > f.limits.Age
	if (full || old) && f.size >= f.retry {
		if err := f.rotate(); err != nil {
			f.retry = f.size + retryAfter
			n, _ := fmt.Fprintf(os.Stderr, "rotating log %s failed; it grows beyond its limit, retrying after the next megabyte: %v\n", f.path, err) // p reports the error of writing
			f.size += int64(n)
		}
	}
	n, err := os.Stderr.Write(p)
	f.size += int64(n)
	return n, err
}

// rotate renames the file, continues with a new one, and removes rotated files that are not kept. The caller holds the
// lock.
func (f *File) rotate() error {
	now := f.now()
	next, err := os.OpenFile(f.path+".new", os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer next.Close()
	if err := f.rename(now); err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	if err := os.Rename(next.Name(), f.path); err != nil {
		return err
	}
	var old, output unix.Stat_t
	both := unix.Fstat(unix.Stderr, &old) == nil && unix.Fstat(unix.Stdout, &output) == nil && old.Dev == output.Dev && old.Ino == output.Ino
	if err := unix.Dup3(int(next.Fd()), unix.Stderr, 0); err != nil {
		return fmt.Errorf("replacing standard error: %w", err)
	}
	if both {
		if err := unix.Dup3(int(next.Fd()), unix.Stdout, 0); err != nil {
			return fmt.Errorf("replacing standard output: %w", err)
		}
	}
	f.size, f.created, f.retry = 0, now, 0
	return f.prune()
}

// rename gives the file a name with the time now, or with a later time than that of the previous rotation. It does not
// replace another file.
func (f *File) rename(now time.Time) error {
	if !now.After(f.rotated) {
		now = f.rotated.Add(time.Microsecond)
	}
	f.rotated = now
	return unix.Renameat2(unix.AT_FDCWD, f.path, unix.AT_FDCWD, f.path+"."+now.UTC().Format(timeFormat), unix.RENAME_NOREPLACE)
}

// prune removes the oldest rotated files.
func (f *File) prune() error {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	prefix := filepath.Base(f.path) + "."
	var rotated []string
	for _, e := range entries {
		if suffix, ok := strings.CutPrefix(e.Name(), prefix); ok && e.Type().IsRegular() && isTime(suffix) {
			rotated = append(rotated, e.Name())
		}
	}
	slices.Sort(rotated)
	var errs []error
	for i := range len(rotated) - f.limits.Kept {
		errs = append(errs, os.Remove(filepath.Join(filepath.Dir(f.path), rotated[i])))
	}
	return errors.Join(errs...)
}

// isTime reports whether the suffix of a file is the time of a rotation.
func isTime(suffix string) bool {
	_, err := time.Parse(timeFormat, suffix)
	return err == nil
}
