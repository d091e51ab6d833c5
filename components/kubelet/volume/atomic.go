package volume

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// File is one file of a payload.
type File struct {
	Data []byte
	Mode os.FileMode
	// User owns the file; nil is root.
	User *int64
}

// Payload is files by their path relative to the volume. Paths are clean, do
// not leave the volume, and no part of them begins with "..".
type Payload map[string]File

const (
	dataLink = "..data"
	tempLink = "..data_tmp"
)

// writeAtomically makes dir show exactly payload. Readers see the old files or
// the new ones, never a mix: the files are in a directory of their own, that
// ..data is a link to, and what users see are links into ..data. Nothing is
// written when nothing changed. group, if not nil, may read the files (fsGroup).
func writeAtomically(dir string, payload Payload, group *int64) error {
	for p := range payload {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the link to the volume's files: %w", err)
	}
	if old != "" && unchanged(filepath.Join(dir, old), payload) {
		return linkAll(dir, payload)
	}
	fresh := filepath.Join(dir, time.Now().UTC().Format("..2006_01_02_15_04_05.")+strings.ToLower(rand.Text()[:10]))
	err = writeFresh(fresh, payload, group)
	if err == nil {
		err = switchTo(dir, filepath.Base(fresh))
	}
	if err != nil {
		// It is tried again, each time under another name.
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := linkAll(dir, payload); err != nil {
		return err
	}
	return removeStale(dir, payload, filepath.Base(fresh))
}

// switchTo makes ..data lead to the directory fresh, which is in dir.
func switchTo(dir, fresh string) error {
	temp := filepath.Join(dir, tempLink)
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing a stale link: %w", err)
	}
	if err := os.Symlink(fresh, temp); err != nil {
		return fmt.Errorf("linking the volume's files: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("switching to the volume's new files: %w", err)
	}
	return nil
}

func checkPath(p string) error {
	switch {
	case p == "":
		return errors.New("invalid path: must not be empty")
	case path.IsAbs(p):
		return fmt.Errorf("invalid path: must be relative path: %s", p)
	case len(p) > 4096:
		return errors.New("invalid path: must be less than or equal to 4096 characters")
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." || len(part) > 255 {
			return fmt.Errorf("invalid path: must not contain '..': %s", p)
		}
	}
	if strings.HasPrefix(path.Clean(p), "..") {
		return fmt.Errorf("invalid path: must not start with '..': %s", p)
	}
	return nil
}

// unchanged tells whether the files at dir are those of payload.
func unchanged(dir string, payload Payload) bool {
	count := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			count++
		}
		return nil
	})
	if err != nil || count != len(payload) {
		return false
	}
	for p, f := range payload {
		have, err := os.ReadFile(filepath.Join(dir, p))
		if err != nil || !bytes.Equal(have, f.Data) {
			return false
		}
	}
	return true
}

// writeFresh writes payload into the directory fresh, which is made.
func writeFresh(fresh string, payload Payload, group *int64) error {
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return fmt.Errorf("making the volume's directory: %w", err)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return fmt.Errorf("making the volume's directory: %w", err)
	}
	for p, f := range payload {
		full := filepath.Join(fresh, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return fmt.Errorf("making a directory of the volume: %w", err)
		}
		if err := os.WriteFile(full, f.Data, f.Mode); err != nil {
			return fmt.Errorf("writing a file of the volume: %w", err)
		}
		if f.User != nil {
			if err := os.Chown(full, int(*f.User), -1); err != nil {
				return fmt.Errorf("giving a file of the volume to its user: %w", err)
			}
		}
		// The umask does not say what a volume's modes are.
		if err := os.Chmod(full, f.Mode); err != nil {
			return fmt.Errorf("setting the mode of a file of the volume: %w", err)
		}
	}
	if group != nil {
		return setGroup(fresh, *group, true)
	}
	return nil
}

// linkAll links the first part of every path into ..data.
func linkAll(dir string, payload Payload) error {
	for p := range payload {
		name, _, _ := strings.Cut(path.Clean(p), "/")
		link := filepath.Join(dir, name)
		target := filepath.Join(dataLink, name)
		if have, err := os.Readlink(link); err == nil && have == target {
			continue
		}
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("linking a file of the volume: %w", err)
		}
	}
	return nil
}

// removeStale removes all but what payload and ..data, which leads to current,
// need: the files before these, and what a crash in the middle has left.
func removeStale(dir string, payload Payload, current string) error {
	keep := map[string]bool{}
	for p := range payload {
		name, _, _ := strings.Cut(path.Clean(p), "/")
		keep[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the volume: %w", err)
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == dataLink || name == current || keep[name]:
			continue
		case strings.HasPrefix(name, ".."):
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("removing the volume's old files: %w", err)
			}
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing a stale link of the volume: %w", err)
		}
	}
	return nil
}
