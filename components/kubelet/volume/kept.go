package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"hyperkube/internal/atomicfile"
)

// Keep writes what must be known to take a volume back into a file of the folder beside
// its mount, whole or not at all, and to the disk before it returns: a volume that nobody
// knows of is never taken back. It makes the folder, and leaves a file alone that says
// the same.
func Keep(dir, file string, what any) error {
	raw, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding a volume's data: %w", err)
	}
	path := filepath.Join(dir, file)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(raw) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("making a volume's directory: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: raw, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing a volume's data: %w", err)
	}
	return nil
}

// Forget removes what Keep has written, what is left of writing it, and the folder, which
// has nothing else in it but the empty mount point, which may be "" for none. What is not
// there is no error.
func Forget(dir, file, mountPoint string) error {
	half, err := filepath.Glob(filepath.Join(dir, "."+file+"*"))
	if err != nil {
		return fmt.Errorf("removing a volume's data: %w", err)
	}
	if mountPoint != "" {
		// The file goes after it: until then somebody knows of what may be mounted there.
		half = append(half, filepath.Join(dir, mountPoint))
	}
	for _, path := range append(half, filepath.Join(dir, file), dir) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a volume's data: %w", err)
		}
	}
	return nil
}
