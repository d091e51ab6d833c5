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

// File is the content, mode and owner of one file that the kubelet writes into a volume.
type File struct {
	Data []byte
	Mode os.FileMode
	// User owns the file; nil means root.
	User *int64
}

// Payload is the files that a volume must contain, by their path relative to the volume. writeAtomically
// rejects absolute paths and paths that leave the volume or begin with "..".
type Payload map[string]File

// dataLink is the name of the symbolic link in a volume to the directory with the current files, and tempLink that
// of the new link before it replaces dataLink.
const (
	dataLink = "..data"
	tempLink = "..data_tmp"
)

// writeAtomically makes the volume directory dir contain exactly the files of payload. Containers see either
// the old or the new files, never a mix: the files are in a separate directory, ..data is a symbolic link to
// that directory, and the paths that containers use are links into ..data. Nothing is written if the content
// is unchanged. group, if not nil, gets read access to the files (fsGroup).
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
		// An earlier attempt may have failed after it switched to the new files.
		if err := linkAll(dir, payload); err != nil {
			return err
		}
		return removeStale(dir, payload, old)
	}
	fresh := filepath.Join(dir, time.Now().UTC().Format("..2006_01_02_15_04_05.")+strings.ToLower(rand.Text()[:10]))
	err = writeFresh(fresh, payload, group)
	if err == nil {
		err = switchTo(dir, filepath.Base(fresh))
	}
	if err != nil {
		// The next attempt uses another name.
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := linkAll(dir, payload); err != nil {
		return err
	}
	return removeStale(dir, payload, filepath.Base(fresh))
}

// switchTo makes ..data link to the directory fresh, which is in dir, instead of the previous one. The
// replacement of the link is atomic.
func switchTo(dir, fresh string) error {
	temp := filepath.Join(dir, tempLink)
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing a stale link: %w", err)
	}
	if err := os.Symlink(fresh, temp); err != nil {
		// The error of os contains the target, whose name differs with each attempt.
		if at, ok := errors.AsType[*os.LinkError](err); ok {
			err = at.Err
		}
		return fmt.Errorf("creating link %s: %w", temp, err)
	}
	if err := os.Rename(temp, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("switching to the volume's new files: %w", err)
	}
	return nil
}

// checkPath returns an error, with upstream's text, if p is not a path that a file of a Payload may have: it
// must be relative and not too long, and must neither contain ".." nor begin with it.
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

// unchanged reports whether dir has the same files, with the same content, as payload. Modes and owners are not
// compared. An error counts as a change.
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

// writeFresh creates the directory fresh and writes payload into it. After an error the caller must remove
// the directory.
func writeFresh(fresh string, payload Payload, group *int64) error {
	// Errors name the path in the volume, because that of fresh differs with each attempt.
	fail := func(verb, name string, err error) error {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = at.Err
		}
		return fmt.Errorf("%s %s: %w", verb, filepath.Join(filepath.Dir(fresh), name), err)
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return fail("creating a directory in", "", err)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return fail("creating a directory in", "", err)
	}
	for p, f := range payload {
		full := filepath.Join(fresh, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return fail("creating directory", filepath.Dir(p), err)
		}
		if err := os.WriteFile(full, f.Data, f.Mode); err != nil {
			return fail("writing", p, err)
		}
		if f.User != nil {
			if err := os.Chown(full, int(*f.User), -1); err != nil {
				return fail("changing the owner of", p, err)
			}
		}
		// The umask must not affect the modes of a volume's files.
		if err := os.Chmod(full, f.Mode); err != nil {
			return fail("setting the mode of", p, err)
		}
	}
	if group != nil {
		return setGroup(fresh, *group, true)
	}
	return nil
}

// linkAll creates, in the volume directory dir, a link into ..data for the first element of every path of
// payload. Existing entries are not replaced.
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

// removeStale removes everything except what payload and ..data, which links to current, need:
// files of earlier payloads, links to them, and leftovers of a crash. Other entries stay, such as mount
// points of other volumes.
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
		link := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(link); err != nil || filepath.Dir(target) != dataLink {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing a stale link of the volume: %w", err)
		}
	}
	return nil
}
