package volume

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
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

// WriteAtomically makes dir show exactly payload. Readers see the old files or
// the new ones, never a mix: the files are in a directory of their own, that
// ..data is a link to, and what users see are links into ..data. Nothing is
// written when nothing changed. group, if not nil, may read the files (fsGroup).
func WriteAtomically(dir string, payload Payload, group *int64) error {
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
	fresh, err := writeFresh(dir, payload, group)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, tempLink)
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing a stale link: %w", err)
	}
	if err := os.Symlink(filepath.Base(fresh), temp); err != nil {
		return fmt.Errorf("linking the volume's files: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("switching to the volume's new files: %w", err)
	}
	if err := linkAll(dir, payload); err != nil {
		return err
	}
	if err := unlinkStale(dir, payload); err != nil {
		return err
	}
	if old != "" && strings.HasPrefix(old, "..") && !strings.Contains(old, "/") {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return fmt.Errorf("removing the volume's old files: %w", err)
		}
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
	for _, part := range strings.Split(p, "/") {
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

func writeFresh(dir string, payload Payload, group *int64) (string, error) {
	suffix := make([]byte, 5)
	if _, err := rand.Read(suffix); err != nil {
		return "", fmt.Errorf("naming the volume's files: %w", err)
	}
	fresh := filepath.Join(dir, time.Now().UTC().Format("..2006_01_02_15_04_05.")+hex.EncodeToString(suffix))
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return "", fmt.Errorf("making the volume's directory: %w", err)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return "", fmt.Errorf("making the volume's directory: %w", err)
	}
	for p, f := range payload {
		full := filepath.Join(fresh, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return "", fmt.Errorf("making a directory of the volume: %w", err)
		}
		if err := os.WriteFile(full, f.Data, f.Mode); err != nil {
			return "", fmt.Errorf("writing a file of the volume: %w", err)
		}
		if f.User != nil {
			if err := os.Chown(full, int(*f.User), -1); err != nil {
				return "", fmt.Errorf("giving a file of the volume to its user: %w", err)
			}
		}
		// The umask does not say what a volume's modes are.
		if err := os.Chmod(full, f.Mode); err != nil {
			return "", fmt.Errorf("setting the mode of a file of the volume: %w", err)
		}
	}
	if group != nil {
		if err := SetGroup(fresh, *group, true); err != nil {
			return "", err
		}
	}
	return fresh, nil
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

func unlinkStale(dir string, payload Payload) error {
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
		if strings.HasPrefix(e.Name(), "..") || keep[e.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing a stale link of the volume: %w", err)
		}
	}
	return nil
}

// SetGroup gives a tree to a group, as fsGroup asks: the group may read it,
// write it too unless readOnly, and what is made in its directories later
// belongs to the group as well.
func SetGroup(root string, group int64, readOnly bool) error {
	return setGroup(root, group, readOnly, &atomic.Int64{})
}

// setGroup is SetGroup that counts the files.
func setGroup(root string, group int64, readOnly bool, files *atomic.Int64) error {
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}
		files.Add(1)
		if err := os.Lchown(p, -1, int(group)); err != nil {
			return err
		}
		if d.Type()&os.ModeSymlink != 0 {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mask := os.FileMode(0o660)
		if readOnly {
			mask = 0o440
		}
		if d.IsDir() {
			mask |= os.ModeSetgid | 0o110
		}
		return os.Chmod(p, info.Mode()|mask)
	})
	if err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", group, err)
	}
	return nil
}
