package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"hyperkube/internal/host/atomicfile"
)

// SaveData saves the data that is needed to tear down a volume in a file in the directory beside its
// mount. The write is atomic and synced to disk before Keep returns: a volume without this file
// would never be torn down. Keep creates the directory, and does not write if the content is
// unchanged.
func SaveData(dir, file string, what any) error {
	raw, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding a volume's data: %w", err)
	}
	path := filepath.Join(dir, file)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(raw) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("creating a volume's directory: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: raw, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing a volume's data: %w", err)
	}
	return nil
}

// RemoveData removes the file written by Keep, remains of interrupted writes, the empty mount point
// unless it is "", and the directory, which must contain nothing else. Files that do not exist are
// not an error.
func RemoveData(dir, file, mountPoint string) error {
	half, err := filepath.Glob(filepath.Join(dir, "."+file+"*"))
	if err != nil {
		return fmt.Errorf("removing a volume's data: %w", err)
	}
	if mountPoint != "" {
		// The file is removed after it, so that a volume that may still be mounted there remains
		// known.
		half = append(half, filepath.Join(dir, mountPoint))
	}
	for _, path := range append(half, filepath.Join(dir, file), dir) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a volume's data: %w", err)
		}
	}
	return nil
}
